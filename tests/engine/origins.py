"""What the origins of a choice's tokens say of its drafts, to be compared with counts of them."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages.step_output import Origin

ACCEPTED, BONUS = Origin.ACCEPTED, Origin.BONUS


def accepted_runs(origins: Sequence[Origin], k: int) -> list[int]:
    """How many drafts were accepted in each step that verified any.

    A step leaves up to k accepted drafts and a token after them, but for the last one of a choice,
    which may find no room for that token.
    """
    runs, accepted = [], 0
    for origin in origins:
        if origin == ACCEPTED:
            accepted += 1
            continue
        if origin == Origin.DRAWN:
            assert not accepted, "a step without drafts accepted one"
        else:
            assert origin != BONUS or accepted == k, "a bonus after fewer drafts than there were"
            runs.append(accepted)
        accepted = 0
    return runs + [accepted] * (accepted > 0)


def draft_counts(origins: Sequence[Origin], k: int) -> list[int]:
    """The steps that verified drafts, then how many of these accepted the draft of each place."""
    runs = accepted_runs(origins, k)
    return [len(runs), *(sum(run > place for run in runs) for place in range(k))]
