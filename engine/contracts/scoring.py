"""The contract between the scoring queue and the runner. No torch.

A step is rows of tokens: parts of queries, of which only keys and values are kept, and items,
some of whose positions are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.arrays import Float32Array, Float64Array, Int32Array, Int64Array
from engine.contracts.adapters import AdapterLoad
from engine.contracts.shared_blocks import Sharing


class PlanStates(NamedTuple):
    """The states that a step's R rows begin from and leave, in parts that run one after another.

    Attributes:
        sources, targets: int32 [R], snapshots. A row may begin from what one of an earlier part
            leaves.
        part_starts: int32 [P], each part's first row; the first is 0.
    """

    sources: Int32Array
    targets: Int32Array
    part_starts: Int32Array


@dataclass(frozen=True)
class ScoringPlan:
    """The plan of one step of scoring: R rows of T tokens; J ids are read at each of P positions.

    Attributes:
        token_ids: int32 [T]. positions: int64 [T], absolute.
        query_starts: int32 [R + 1]; row r owns tokens query_starts[r]:query_starts[r + 1].
        seq_lens: int32 [R], keys a row's last token sees, itself included.
        block_tables: int32 [R, B], padded with `NULL_BLOCK`.
        slots: int64 [T], block * block_size + offset where a token's key and value go.
        sharing: rows that begin with the same blocks, if any do; some of these may be computed by
            rows of this step.
        read_tokens: int64 [P], tokens whose hidden state goes through the LM head.
        embed_tokens: int64 [E], tokens whose hidden state is reported itself.
        id_lists: int32 [P, J], ids whose values are read there, padded with `NO_TOKEN`.
        states: where layers keep states; None where they keep none.
        adapters: int32 [R], the slots of the rows' adapters; None where no row has one.
        adapter_loads: copied into slots before the step.
    """

    token_ids: Int32Array
    positions: Int64Array
    query_starts: Int32Array
    seq_lens: Int32Array
    block_tables: Int32Array
    slots: Int64Array
    sharing: Sharing | None
    read_tokens: Int64Array
    embed_tokens: Int64Array
    id_lists: Int32Array
    states: PlanStates | None = None
    adapters: Int32Array | None = None
    adapter_loads: list[AdapterLoad] = field(default_factory=list)


@dataclass(frozen=True)
class ScoringResult:
    """The values that a step of scoring read, on the host.

    Attributes:
        values: float32 [P, J], logprobs of the ids, NaN where the logits were not usable;
            undefined in the places of `NO_TOKEN`.
        others: float32 [P], log of the mass of all other ids.
        best_ids: int32 [P], the best of all other ids.
        best: float32 [P], its logprob.
        log_sums: float64 [P], the log-sum-exp of each position's logits.
        hidden: float32 [E, hidden_size], hidden states after the final norm.
    """

    values: Float32Array
    others: Float32Array
    best_ids: Int32Array
    best: Float32Array
    log_sums: Float64Array
    hidden: Float32Array


class ScoringHandle(Protocol):
    """A step that was launched; `wait` is that of `engine.contracts.runner.StepHandle`.

    Attributes:
        is_there: the device has computed it, or begins only when it is waited for.
    """

    @property
    def is_there(self) -> bool: ...

    def wait(self) -> ScoringResult: ...


class ScoringRunner(Protocol):
    """Runs steps of scoring in order, after the steps of choices that were launched before."""

    def launch_scoring(self, plan: ScoringPlan) -> ScoringHandle: ...
