"""`/v1/responses`, OpenAI's Responses.

In the order to read: `items` (the input as messages of a conversation), `thoughts`, `spec` (all
other fields), `output` (what a choice says as items), `shape` (the response around them).
"""
