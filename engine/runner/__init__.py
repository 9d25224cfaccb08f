"""Runs steps on the device.

Read forward (the first half of a step), gather (its inputs, of any shape), step (the second half),
speculation, then model_runner, which puts them together; decode_step and decode_graphs (decode
steps at fixed addresses, captured), piecewise_graphs (the layers of other steps, captured) and
whole_graphs (their attention too); last prompt_logprobs, scoring, logit_chunks and launched.
"""
