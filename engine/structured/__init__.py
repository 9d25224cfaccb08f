"""Restricts what choices generate to their grammars and budgets of thoughts, without torch.

In reading order: `grammars` (what the engine's loop calls), `compiler` (grammars compiled off that
loop, by llguidance), `matcher` (how far one choice is, and which masks its next tokens need),
`beginning` (where its grammar begins), `budget` (how much it has thought), `markers` (both look for
them), `step_masks` and `masks` (the masks of a step), `tokenizer` (the model's tokens as llguidance
knows them), `limits` (what a grammar may cost). `prerequisites` is what choices wait for before a
row, their adapter and their grammar.
"""
