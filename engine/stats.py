"""What an engine tells of itself with every step: gauges, counters, histograms."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt


class DraftStats(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the drafts of a choice, or of all.

    Attributes:
        num_drafts: steps that verified any.
        num_draft_tokens: drafts verified.
        accepted_at: drafts kept by their place in the step, the first of k first.
    """

    num_drafts: int
    num_draft_tokens: int
    accepted_at: tuple[int, ...]

    @classmethod
    def of(cls, counts: npt.NDArray[np.int64]) -> DraftStats:
        """From counts int64 [2 + k]."""
        num_drafts, num_draft_tokens, *accepted_at = counts.tolist()
        return cls(
            num_drafts=num_drafts,
            num_draft_tokens=num_draft_tokens,
            accepted_at=tuple(accepted_at),
        )

    @property
    def num_accepted(self) -> int:
        """Drafts kept."""
        return sum(self.accepted_at)

    @property
    def acceptance(self) -> list[float]:
        """Share of the steps that kept the draft of each place."""
        return [count / max(self.num_drafts, 1) for count in self.accepted_at]


class HistogramStats(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram over the bounds its maker knows.

    Attributes:
        counts: values up to each bound and above the one before; the last, above all.
        total: sum of the values.
    """

    counts: tuple[int, ...]
    total: float


class TimingStats(msgspec.Struct, frozen=True, kw_only=True):
    """Histograms of choices that drew a token and have ended, and of their steps.

    Attributes:
        queue, prefill, decode, inference: seconds until a choice got a row, from there to its first
            token, from there to its last, and the latter two together; `timings.SECONDS`.
        step_tokens: tokens a step computed; `timings.STEP_TOKENS`.
    """

    queue: HistogramStats
    prefill: HistogramStats
    decode: HistogramStats
    inference: HistogramStats
    step_tokens: HistogramStats


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges after the step, and counters since the engine started."""

    num_running: int
    num_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    num_steps: int
    num_preemptions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    prompt_tokens_computed: int
    nan_rows: int
    timings: TimingStats
    failed_steps: int = 0
    sampler_rows: dict[str, int] = {}
    drafts: DraftStats | None = None
