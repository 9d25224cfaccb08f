"""`/v1/messages`, Anthropic's Messages.

In the order to read: `turns` (messages of blocks as messages of a conversation), `spec` (all other
fields), `shape` (what a choice says as blocks, and the message around them).
"""
