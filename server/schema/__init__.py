"""Bodies of requests and replies as types: what clients may send, and what they get back.

In reading order: `base` (what every body obeys, and how it is refused), `ids`, `prompts` and
`fields` (kinds of fields), `checks` (fields checked against this server), `completions`, `scoring`,
`tokens`, `chat`, `responses`, `anthropic` (request bodies), `replies`, and `openapi` (the page made
of all of them).
"""
