"""Responses that are kept, so that clients can continue, read, delete and cancel them.

In the order to read: `records` (what is kept), `database` and `conversations` (the file), `store`
(for handlers).
"""
