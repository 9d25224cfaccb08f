"""The label endpoints: how likely labels are after a query and items.

In reading order: `labels` (labels as a tree), `spec` (what the engine is asked), `prepare` (a body
made ready), `replies`.
"""
