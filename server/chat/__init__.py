"""Chat: conversations made into prompts, and choices told as messages.

A chat is a completion whose prompt is a conversation rendered by the model's template and whose
reply has another shape. What lies between, from sampling parameters to the engine and back, is
`server.completions`.

In the order to read: `messages`, `template`, `prepare`, `render`.
"""
