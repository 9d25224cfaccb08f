"""Runs the commands of operators and trainers between two steps, without torch.

In reading order: `commands` (when each runs), `follower` (what each does, and the state it leaves).
"""
