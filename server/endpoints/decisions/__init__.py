"""`/v1/decisions`: questions about a state, answered with probabilities.

In reading order: `question` (what is asked), `wording` (in which words), `prompts` (prompts that
share the state), `thoughts` (the model's, before it is read), `answers` (what was read), `decide`
(all of it); then `schema`, `state`, `request`, `replies` and `route` of OpenAI's endpoint.
`server.endpoints.systemone` is TypeSafe's.
"""
