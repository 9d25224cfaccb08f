"""The one path of whatever generates, from a spec to the reply.

In the order to read: `spec` and `form` (what an endpoint asks for, and what its reply shows),
`served` (what that is read against), `translation` (a body as a spec), `prepare` (it is made ready:
`size_limits` of requests and replies, `masks` that fit each other, `prompts` as ids),
`generation` (a request while the engine works at it; `tally`: its counts), `choice` (one choice as
it grows, by way of `logprob_queue`), `logprobs`, `prompt_report` and `render` (reply objects),
`streaming` (the same as server-sent events).
"""
