"""The contracts between rooms of the engine; every room may import them, and they import no room.

Read model and attention (models over backends), drafter, then scoring and sharing (the scoring
queue over the runner).
"""
