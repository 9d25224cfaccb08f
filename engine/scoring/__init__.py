"""Schedules requests for the probabilities of labels after items, without torch.

In reading order: `queue` (requests from submission to answer), `progress` (one request on its
way), `packing` (rows of several requests as one step).
"""
