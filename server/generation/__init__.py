"""The one path of whatever generates, from a spec to the reply.

In the order to read: `spec` (what an endpoint asks for), `params` and `form` (parts of it, read off
a body), `served` (what it is read against), `prompts` and `prepare` (it is made ready), `bounds`
(how large a request and its reply may be), `generation` (a request while the engine works at it),
`choice` (one choice as it grows, by way of `logprob_queue`), `logprobs` and `render` (reply
objects), `streaming` (the same as server-sent events).
"""
