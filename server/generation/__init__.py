"""Completion requests, from a checked body to the reply.

In reading order: `params` and `prompts` (what the engine is told), `prepare` (a body made ready),
`bounds` (how large a request and its reply may be), `generation` (a request while the engine works
at it), `choice` (one choice as it grows, by way of `logprob_queue`), `logprobs` and `render` (reply
objects), `streaming` (the same as server-sent events).
"""
