"""Runs steps on the device.

Read forward (the first half of a step), host_gather (its inputs, of any shape; gather where there
is a drafter), step (the second half), speculation, host_copy (its results), then model_runner,
which puts them together; decode_step and decode_graphs (decode
steps at fixed addresses, captured), piecewise_graphs (the layers of other steps, captured) and
whole_graphs (their attention too); last prompt_logprobs, scoring, logit_chunks and launched.
"""
