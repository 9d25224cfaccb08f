"""Schedules requests for the probabilities of labels after items, without torch.

In reading order: `queue` (requests from submission to answer), `line` (those that wait), `step`
(who is in a step, with how many rows), `progress` (one request on its way), `layout` (its rows),
`packing` (rows of several requests as one step), `reading` (results entered into requests).
"""
