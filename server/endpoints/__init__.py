"""The routes of the API: each handler reads a body, has it answered, and returns the reply.

`completions`, `scoring`, `tokens`, `models` and `health` hold the routes; `plain` is the kind of
route that all of them are.
"""
