"""Statistics that an engine reports with its outputs: gauges, counters, histograms."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt


class DraftStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the drafts of one choice, or of all choices.

    Attributes:
        num_drafts: steps that verified any drafts.
        num_draft_tokens: drafts verified.
        accepted_at: drafts accepted at each of the k places of a step.
    """

    num_drafts: int
    num_draft_tokens: int
    accepted_at: tuple[int, ...]

    @classmethod
    def of(cls, counts: npt.NDArray[np.int64]) -> DraftStats:
        """Make statistics of counts int64 [2 + k], which hold the fields in order."""
        num_drafts, num_draft_tokens, *accepted_at = counts.tolist()
        return cls(
            num_drafts=num_drafts,
            num_draft_tokens=num_draft_tokens,
            accepted_at=tuple(accepted_at),
        )

    @property
    def num_accepted(self) -> int:
        """The number of drafts accepted."""
        return sum(self.accepted_at)

    @property
    def acceptance(self) -> list[float]:
        """The share of the steps that accepted the draft of each place."""
        return [count / max(self.num_drafts, 1) for count in self.accepted_at]


class HistogramStats(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram over bounds that are not part of it.

    Attributes:
        counts: number of values up to each bound and above the one before; the last counts values
            above all bounds.
        total: sum of the values.
    """

    counts: tuple[int, ...]
    total: float


class TimingStats(msgspec.Struct, frozen=True, kw_only=True):
    """Histograms of times of choices that drew a token and ended, and of the sizes of steps.

    Attributes:
        queue: seconds from submission to the first row. Bounds of this and the next three:
            `timings.SECONDS`.
        prefill: seconds from there to the first token.
        decode: seconds from there to the end.
        inference: prefill and decode together.
        first_token: seconds from the submission of a request to the first token of its first
            choice, counted at once. Bounds: `timings.SECONDS`.
        later_token: seconds between the first and the last token of a choice, divided by the tokens
            after the first. Bounds: `timings.TOKEN_SECONDS`.
        preemptions: times a choice lost its row. Bounds: `timings.PREEMPTIONS`.
        step_tokens: tokens a step computed. Bounds: `timings.STEP_TOKENS`.
    """

    queue: HistogramStats
    prefill: HistogramStats
    decode: HistogramStats
    inference: HistogramStats
    first_token: HistogramStats
    later_token: HistogramStats
    preemptions: HistogramStats
    step_tokens: HistogramStats


class GrammarStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the work that grammars cost.

    Attributes:
        num_compiles: grammars compiled, those that failed included.
        compile_seconds: time that this took, summed over threads.
        num_cache_hits: requests whose grammar was compiled, or being compiled, for another.
        num_masks: masks filled; a row has one for each position it may draw from.
        mask_seconds: time that steps spent on filling them.
        num_errors: choices ended because their grammar could not be compiled or followed.
    """

    num_compiles: int = 0
    compile_seconds: float = 0.0
    num_cache_hits: int = 0
    num_masks: int = 0
    mask_seconds: float = 0.0
    num_errors: int = 0


class SnapshotStats(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots of rows' states.

    Attributes:
        num_total, num_kept: there are, and can be found now.
        total_bytes, kept_bytes: the memory of either, on one rank.
        num_made: made so far, to be found.
        num_hits: choices and scoring requests that began from one so far.
        num_evicted: no longer found so far, since others needed their memory.
    """

    num_total: int = 0
    num_kept: int = 0
    total_bytes: int = 0
    kept_bytes: int = 0
    num_made: int = 0
    num_hits: int = 0
    num_evicted: int = 0


class AdapterStats(msgspec.Struct, frozen=True, kw_only=True):
    """LoRA adapters after a step, and counts of them.

    Attributes:
        running, waiting: names of those that rows have, and of those that requests without a row
            ask for, in order.
        num_slots: adapters that one step can have. num_held: those in the host's memory.
        num_slot_loads: times one was copied into a slot.
        num_failed: readings that were refused or failed.
    """

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    num_slots: int = 0
    num_held: int = 0
    num_slot_loads: int = 0
    num_failed: int = 0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges after a step, and counters since the engine started.

    Attributes:
        num_running, num_waiting: choices and scoring requests with and without blocks.
        num_deferred: of those that wait, choices whose grammar or adapter is not there yet.
        kv_blocks_used, kv_blocks_total: blocks of the KV cache held, and in all.
        num_steps: steps of choices that were read back without error.
        num_preemptions: times a running choice lost its row.
        prefix_cache_queries, prefix_cache_hits: prompt tokens looked up, and found computed.
        prompt_tokens_computed: prompt tokens computed by steps.
        nan_rows: choices and scoring requests ended by unusable logits.
        empty_rows: choices ended because their own masks left no token.
        timings: histograms of where time is spent.
        failed_steps: steps of both kinds that raised.
        sampler_rows: rows drawn by each of the sampler's paths.
        drafts: counts of all drafts; None without a drafter.
        grammars: work of all grammars; None where there can be none.
        snapshots: of states; None where no layer keeps a state.
        adapters: None where none are served.
    """

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
    empty_rows: int = 0
    failed_steps: int = 0
    sampler_rows: dict[str, int] = {}
    drafts: DraftStats | None = None
    grammars: GrammarStats | None = None
    snapshots: SnapshotStats | None = None
    adapters: AdapterStats | None = None
    num_deferred: int = 0
