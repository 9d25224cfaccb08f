"""The batch sizes and the needs of rows for which decode steps are captured."""

from __future__ import annotations

from sampling import rows as flags
from sampling.rows import SamplingNeeds

DRAWN, FILTERED = flags.RANDOM, flags.RANDOM | flags.FILTERED
PROCESSED = FILTERED | flags.TWICE_FILTERED | flags.CHANGED
REPORTED = flags.LOGPROBS | flags.NORMALIZED
COMMON_NEEDS = (
    SamplingNeeds(flags=0, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=DRAWN, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=DRAWN | flags.GRAMMAR, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=FILTERED, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=PROCESSED, greedy=True, num_top=0, num_explicit=0),
    SamplingNeeds(flags=DRAWN | REPORTED, greedy=True, num_top=5, num_explicit=0),
    SamplingNeeds(flags=FILTERED | REPORTED, greedy=True, num_top=20, num_explicit=0),
)
"""The needs that are captured, cheapest first. A batch runs on the first that covers its own."""
MEASURED_NEEDS, MEASURED_STEPS = COMMON_NEEDS[1], 4
"""What steps draw with that are timed, and how many of each kind are."""
LONE_NEEDS = COMMON_NEEDS[:2]
"""Those for which a lone row's step is one graph besides: launching another takes the host some
20 us, where a small model's step takes the GPU 600."""


def ladder(max_rows: int) -> tuple[int, ...]:
    """The batch sizes that are captured, ascending, the last `max_rows`.

    Up to 16 a size is at most twice the one before, beyond at most half as much again.
    """
    sizes = [size for size in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96) if size < max_rows]
    sizes += range(128, max_rows, 32 if max_rows <= 256 else 64)
    return (*sizes, max_rows)


def covers(captured: SamplingNeeds, needs: SamplingNeeds) -> bool:
    """Whether a graph captured for some needs serves a batch with others.

    Needs alone do not say whether a step can be captured; see `Sampler.is_capturable`.
    """
    return (
        needs.flags & ~captured.flags & ~flags.FLASHINFER == 0
        and needs.num_top <= captured.num_top
        and needs.num_explicit <= captured.num_explicit
    )
