"""The rows of the host: one array per fact, indexed by row. No torch.

A token is *scheduled* once a step that computes or draws it is planned, and *read back* once that
step's result is on the host. Scheduled counts run ahead of counts read back by the steps in flight.
Both are kept here, and steps are planned from scheduled counts alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.arrays import Int32Array, Int64Array, LogprobArrays
from engine.contracts.adapters import NO_SLOT, AdapterVersion
from engine.messages.request import Request

BoolArray = npt.NDArray[np.bool_]

NO_TOKEN = -1
_ANY_TOKENS = 1 << 62


@dataclass(eq=False)
class Choice:
    """One choice of a request, waiting or running.

    Attributes:
        frontend: identity of the frontend that submitted the request.
        index: number of the choice among the request's `n`.
        seed: noise key, drawn at submission where the request named none.
        arrival: number in order of submission; all choices of a request share it.
        turn: number in order of service. A body's first choice has the number of the body, and
            each further one is served as if its body had come one later: no body, however large,
            keeps the next one waiting, and no choice is passed by more bodies than its place in its
            own.
        token_ids: the prompt, followed by tokens generated before a preemption.
        children: choices that wait until this one has computed their common prompt.
        row: the row it holds while running, else None.
        num_cached: prompt tokens found computed at the first admission.
        hashes: hashes of the full blocks of `token_ids`; None until first needed.
        prompt_parts: prompt logprobs read back so far; None where none are wanted any more.
        adapter: that it draws with, kept from submission to end; None for the base model.
        num_passed: choices that were given rows before it while it waited for a slot.
        num_preemptions: times it lost its row.
        num_prompt_reported: positions of them that were reported as parts, by the weights that are
            served.
        drafts: counts of its drafts, a row of `drafting.DraftCounts`; None without a drafter.
        ended: nothing more is drawn for it.
        queued_at, started_at, drew_at: when it was submitted, first got a row and drew its first
            token, on the monotonic clock in seconds; 0 before.
    """

    frontend: bytes
    request: Request
    index: int
    seed: int
    arrival: int
    token_ids: Int32Array
    turn: int = 0
    children: list[Choice] = field(default_factory=list)
    row: int | None = None
    num_cached: int | None = None
    hashes: list[bytes] | None = None
    prompt_parts: list[LogprobArrays] | None = None
    adapter: AdapterVersion | None = None
    num_passed: int = 0
    num_preemptions: int = 0
    num_prompt_reported: int = 0
    drafts: Int64Array | None = None
    ended: bool = False
    queued_at: float = 0.0
    started_at: float = 0.0
    drew_at: float = 0.0

    @property
    def prompt_len(self) -> int:
        """The number of tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def most_prompt(self) -> int:
        """The prompt tokens that a step may compute of it."""
        wanted = self.request.prompt_logprobs
        return _ANY_TOKENS if self.prompt_parts is None or wanted is None else wanted.step_tokens

    def keep_drafts(self) -> None:
        """Copy the draft counts out of the row, which another choice will hold."""
        if self.drafts is not None:
            self.drafts = self.drafts.copy()


class RowTable:
    """Facts about rows, one array each; `claim` gives a row to a choice and `vacate` takes it back.

    Attributes:
        max_rows, max_len: number of rows, and of tokens a row holds.
        choices: the choice that holds each row, None for a vacant row.
        blocks: blocks of each row, in order of their positions.
        parent_hash: hash of each row's last registered block, or the root's.
        token_ids: int32 [max_rows, max_len + max_new - 1], prompt then output, valid up to
            num_known.
        num_known: tokens read back, the ones given at admission included.
        num_drawing: steps in flight that draw for the row, at least one token each.
        num_tokens: tokens scheduled, an upper bound of num_known once they are read back.
        num_computed: tokens whose KV is scheduled to be computed, an upper bound.
        prefill_end: tokens to compute before the row decodes, drawing a token in every step.
        num_settled: tokens whose KV was computed by steps that were read back.
        num_hashed: tokens of the leading blocks that are registered for reuse.
        num_granted: blocks the row holds.
        prompt_len: tokens of the prompt.
        limit: num_known at which the choice ends for length.
        min_known: num_known below which stop ids do not end the choice.
        stop_ids: int32 [max_rows, S], padded with NO_TOKEN.
        is_pinned: rows that draft whatever the load.
        is_constrained: rows whose choice draws under masks of its own.
        adapter_slot: the slot of each row's adapter, which it pins; `NO_SLOT` for none.
        has_gap: rows with tokens that the drafter has not seen.
        most_prompt: prompt tokens that a row may compute in a step; fewer where they report much.
        has_drafts: rows whose next token was drafted in the last step planned.
        epoch: raised by every `vacate`; a plan whose epoch differs was made for an earlier choice.
        running: rows in use, in order of admission.
    """

    def __init__(self, max_rows: int, max_len: int, max_new: int = 1) -> None:
        """Make vacant rows.

        Args:
            max_new: tokens a row may draw in one step, some of them after its end.
        """
        self.max_rows = max_rows
        self.max_len = max_len
        self.choices: list[Choice | None] = [None] * max_rows
        self.blocks: list[list[int]] = [[] for _ in range(max_rows)]
        self.parent_hash: list[bytes] = [b""] * max_rows
        self.token_ids: Int32Array = np.zeros((max_rows, max_len + max_new - 1), dtype=np.int32)
        self.num_known = _zeros(max_rows)
        self.num_drawing = _zeros(max_rows)
        self.num_tokens = _zeros(max_rows)
        self.num_computed = _zeros(max_rows)
        self.prefill_end = _zeros(max_rows)
        self.num_settled = _zeros(max_rows)
        self.num_hashed = _zeros(max_rows)
        self.num_granted = _zeros(max_rows)
        self.prompt_len = _zeros(max_rows)
        self.limit = _zeros(max_rows)
        self.min_known = _zeros(max_rows)
        self.is_pinned: BoolArray = np.zeros(max_rows, dtype=np.bool_)
        self.is_constrained: BoolArray = np.zeros(max_rows, dtype=np.bool_)
        self.adapter_slot: Int64Array = np.full(max_rows, NO_SLOT, dtype=np.int64)
        self.has_gap: BoolArray = np.zeros(max_rows, dtype=np.bool_)
        self.most_prompt: Int64Array = np.zeros(max_rows, dtype=np.int64)
        self.has_drafts: BoolArray = np.zeros(max_rows, dtype=np.bool_)
        self.epoch = _zeros(max_rows)
        self.stop_ids: Int32Array = np.full((max_rows, 4), NO_TOKEN, dtype=np.int32)
        self.running: list[int] = []
        self._vacant = list(range(max_rows - 1, -1, -1))

    @property
    def num_vacant(self) -> int:
        """The number of rows free to claim."""
        return len(self._vacant)

    def claim(self, choice: Choice, num_cached: int, prefill_end: int, *, is_pinned: bool) -> int:
        """Give the choice a row; its first `num_cached` tokens are computed in shared blocks."""
        row = self._vacant.pop()
        request = choice.request
        num_tokens = len(choice.token_ids)
        self.choices[row] = choice
        self.token_ids[row, :num_tokens] = choice.token_ids
        self.num_known[row] = self.num_tokens[row] = num_tokens
        self.num_drawing[row] = 0
        self.num_computed[row] = self.num_settled[row] = self.num_hashed[row] = num_cached
        self.prefill_end[row] = prefill_end
        self.is_pinned[row] = is_pinned
        self.is_constrained[row] = request.is_constrained
        self.adapter_slot[row] = NO_SLOT if choice.adapter is None else choice.adapter.slot
        self.has_gap[row] = self.has_drafts[row] = False
        self.prompt_len[row] = choice.prompt_len
        self.most_prompt[row] = choice.most_prompt
        self.limit[row] = self.limit_of(choice)
        self.min_known[row] = choice.prompt_len + request.params.min_tokens
        self._set_stop_ids(row, request.params.stop_token_ids)
        self.running.append(row)
        choice.row = row
        return row

    def limit_of(self, choice: Choice) -> int:
        """The number of tokens known at which the choice ends for length."""
        return min(choice.prompt_len + max(choice.request.max_tokens, 1), self.max_len)

    def vacate(self, row: int) -> None:
        """Take the row from its choice, whose blocks must have been released."""
        choice = self.choices[row]
        assert choice is not None
        choice.row = None
        self.choices[row] = None
        self.blocks[row] = []
        self.num_granted[row] = 0
        self.epoch[row] += 1
        self.running.remove(row)
        self._vacant.append(row)

    def choice(self, row: int) -> Choice:
        """The choice that holds a running row."""
        choice = self.choices[row]
        assert choice is not None, f"row {row} is vacant"
        return choice

    def choices_of(self, rows: npt.NDArray[np.integer[Any]]) -> list[Choice]:
        """The choices that hold running rows [n]."""
        return [self.choice(row) for row in rows.tolist()]

    def _set_stop_ids(self, row: int, stop_ids: tuple[int, ...]) -> None:
        width = self.stop_ids.shape[1]
        if len(stop_ids) > width:
            more = np.full((self.max_rows, len(stop_ids) - width), NO_TOKEN, dtype=np.int32)
            self.stop_ids = np.concatenate([self.stop_ids, more], axis=1)
        self.stop_ids[row] = NO_TOKEN
        self.stop_ids[row, : len(stop_ids)] = stop_ids


def _zeros(count: int) -> Int64Array:
    return np.zeros(count, dtype=np.int64)
