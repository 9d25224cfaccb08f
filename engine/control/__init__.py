"""Runs the commands of operators and trainers between two steps, without torch.

In reading order: `command_queue` (when each runs), `follower` (what each does, and the state that
it leaves), `held_engine` (what they ask of the engine).
"""
