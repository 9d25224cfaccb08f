"""Anthropic's Messages as chats: requests translated to chat requests, replies to blocks.

In the order to read: `turns` (messages of blocks as messages of a chat), `request` (all other
fields), `shape` (what a choice says as blocks, and the message around them).
"""
