"""What endpoints of conversations share: prompts made of them, and their replies as messages.

In the order to read: `spec` (a conversation as an endpoint asks for its continuation), `messages`,
`tools` and `template` (what it is to a template), `prompt` (it is rendered) and `constraints` (what
its replies are held to), `render` (replies as messages), for models that think or call tools
`parsing/` and `parsed_render`, and for the shapes of other endpoints `shaped_render`.
"""
