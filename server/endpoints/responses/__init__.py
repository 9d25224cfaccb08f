"""OpenAI's Responses as chats: requests translated to chat requests, replies to items and events.

In the order to read: `items` (the input as messages), `thoughts`, `request` (all other fields),
`output` (what a choice says as items), `shape` (the response around them).
"""
