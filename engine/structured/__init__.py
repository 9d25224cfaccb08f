"""Restricts what choices generate to their grammars, by llguidance, without torch.

In reading order: `grammars` (what the engine's loop calls), `compiler` (grammars compiled off that
loop), `matcher` (how far one choice is in its grammar), `masks` (the masks of a step), `tokenizer`
(the model's tokens as llguidance knows them), `limits` (what a grammar may cost).
"""
