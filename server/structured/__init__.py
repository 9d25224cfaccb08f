"""Grammars of replies: from what a request asks for to a source that the engine compiles.

In the order to read: `wanted` (which grammar a body asks for), `lark` (pieces of llguidance's Lark
syntax), `json_schema` and `refusals` (JSON schemas, and which keyword of one cannot be served),
`structural_tags`, `sources` (any of them as llguidance's source), `check` (whether llguidance takes
it, and which tokens may come first), `process` (a process of its own for that, which can be ended),
`checker` (what handlers call: bounded, cached).
"""
