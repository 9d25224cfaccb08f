"""Chat: conversations made into prompts, and choices told as messages.

A chat is a completion whose prompt is a conversation rendered by the model's template and whose
reply has another shape. What lies between, from sampling parameters to the engine and back, is
`server.completions`.

In the order to read: `messages`, `tools`, `template`, `prepare`, `render`, and for models that
think or call tools `parsing/` and `parsed_render`; for other endpoints that are translated to chats
`translated` and `renaming`.
"""
