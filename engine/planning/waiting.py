"""Choices that wait for a row, and how they get one. No torch."""

from __future__ import annotations

import numpy as np

from engine.adapters.registry import AdapterRegistry
from engine.config import SchedulerConfig
from engine.memory.blocks import BlockPool
from engine.plan import Admission
from engine.planning.drafting import DraftRules
from engine.planning.prefixes import PrefixIndex
from engine.planning.row_blocks import RowBlocks
from engine.planning.row_snapshots import RowSnapshots
from engine.ranked import RankedLine
from engine.rows import Choice, RowTable

Rank = tuple[int, int, int, int]

MOST_PASSED = 64
"""Choices that wait for a slot for their adapter which a step passes over, and choices that may be
given rows before one of them: then the queue waits until it has its slot."""


class WaitingChoices:
    """A queue in order of rank, whose first choices are given rows where budget and blocks allow.

    Attributes:
        prefix_queries, prefix_hits: prompt tokens looked up, and found computed.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        table: RowTable,
        blocks: RowBlocks,
        prefixes: PrefixIndex,
        drafting: DraftRules,
        snapshots: RowSnapshots | None,
        adapters: AdapterRegistry | None,
    ) -> None:
        self._config = config
        self._block_size = blocks.block_size
        self._pool = pool
        self._table = table
        self._blocks = blocks
        self._prefixes = prefixes
        self._drafting = drafting
        self._snapshots = snapshots
        self._adapters = adapters
        self._line = RankedLine[Choice]()
        self._admissions: list[Admission] = []
        self.prefix_queries = 0
        self.prefix_hits = 0

    def __bool__(self) -> bool:
        return bool(self._line)

    def push(self, choice: Choice) -> None:
        """Let a choice wait for a row."""
        self._line.push(choice, self.rank(choice))

    def discard(self, choice: Choice) -> None:
        """Hold a choice that ended no longer, whether it waited or not."""
        self._line.discard(choice)

    def take_admissions(self) -> list[Admission]:
        """The choices that got rows since this was last called, in order."""
        taken, self._admissions = self._admissions, []
        return taken

    def rank(self, choice: Choice) -> Rank:
        """The order of service: the lowest rank runs first and is preempted last."""
        priority = choice.request.priority if self._config.policy == "priority" else 0
        return (priority, choice.turn, choice.arrival, choice.index)

    def admit(self, budget: int) -> dict[int, int]:
        """Give rows to waiting choices in order of rank; returns the tokens of each first chunk."""
        admitted: dict[int, int] = {}
        passed: list[Choice] = []
        room = self._pool.num_free - self._blocks.num_promised()
        most = max(self._config.burst_rows, 2 * len(self._table.running))
        most = min(most, self._table.num_vacant)
        while (choice := self._line.first) and budget > 0 and len(admitted) < most:
            if self._lacks_slot(choice):
                if len(passed) == MOST_PASSED or choice.num_passed >= MOST_PASSED:
                    break
                choice.num_passed -= len(admitted)
                passed.append(choice)
                self._line.discard(choice)
                continue
            taken = self._admit_one(choice, budget, room)
            if taken is None:
                break
            count, num_blocks = taken
            assert choice.row is not None
            admitted[choice.row] = count
            budget -= count
            room -= num_blocks
            self._line.discard(choice)
        for choice in passed:
            choice.num_passed += len(admitted)
            self.push(choice)
        return admitted

    def _lacks_slot(self, choice: Choice) -> bool:
        """Whether there is no slot for a choice's adapter: rows of others pin all of them."""
        if self._adapters is None or choice.adapter is None:
            return False
        return not self._adapters.has_slot(choice.adapter)

    def _admit_one(self, choice: Choice, budget: int, room: int) -> tuple[int, int] | None:
        """Give a choice a row and plan its first chunk; None where budget or room is too small.

        `budget` is the step's tokens left, `room` the free blocks that no other choice is promised.
        Returns the tokens of the chunk, and the part of the room that the choice takes.
        """
        pinned = self._drafting.pins(choice.request)
        known = self._known_blocks(choice, pinned)
        num_shared, snapshot = self._prefixes.find_state(choice, len(known))
        shared = known[:num_shared]
        num_cached = num_shared * self._block_size
        end = self._prefill_end(choice)
        remaining = end - num_cached
        if remaining > budget and not self._config.chunked_prefill:
            return None
        if choice.most_prompt < remaining and self._reports_much():
            return None
        # Blocks are granted chunk by chunk, but there must be room for all tokens: a choice
        # admitted too early would be preempted before its first token.
        limit = self._table.limit_of(choice)
        need = int(self._blocks.needed(len(choice.token_ids), limit)) - len(shared)
        need += self._pool.num_idle(shared)
        if need > room:
            return None
        self._pool.share(shared)
        if self._adapters is not None and choice.adapter is not None:
            self._adapters.place(choice.adapter)
        row = self._table.claim(choice, num_cached, end, is_pinned=pinned)
        has_gap = self._drafting.has_cache and not self._pool.are_drafted(shared)
        self._table.has_gap[row] = has_gap
        if shared:
            self._blocks.append(row, shared)
        self._table.parent_hash[row] = self._prefixes.last_hash(choice, len(shared))
        reads = self._drafting.reads_outputs(choice.request)
        self._admissions.append(Admission(row, choice, num_cached, limit, snapshot, reads))
        if choice.num_cached is None:
            choice.num_cached = min(num_cached, choice.prompt_len)
            self.prefix_queries += choice.prompt_len
            self.prefix_hits += choice.num_cached
        count = min(remaining, budget, choice.most_prompt)
        if self._snapshots is not None:
            self._snapshots.admit(row, choice, snapshot, num_shared, len(known))
        blocks = self._pool.grant(int(self._blocks.needed(num_cached + count, limit)) - len(shared))
        assert blocks is not None, "blocks were counted before admission"
        self._blocks.append(row, blocks)
        return count, need

    def _reports_much(self) -> bool:
        """Whether a running prompt reports so much that its steps are cut: one does at a time."""
        table = self._table
        rows = np.array(table.running, dtype=np.int64)
        left = table.prefill_end[rows] - table.num_computed[rows]
        return bool((left > table.most_prompt[rows]).any())

    def _prefill_end(self, choice: Choice) -> int:
        """Tokens to compute before the choice decodes.

        With a drafter, a preempted choice must decode from the same drafts as before, or its tokens
        could differ where drafts are sampled. It computes all but its last token, from which these
        drafts are made again.
        """
        num_tokens = len(choice.token_ids)
        goes_on = self._drafting.num_tokens and num_tokens > choice.prompt_len
        return num_tokens - 1 if goes_on else num_tokens

    def _known_blocks(self, choice: Choice, pinned: bool) -> list[int]:
        """Known blocks of the choice's prefix, up to the first token it must compute itself."""
        reusable = self._prefill_end(choice) - 1  # the last token's logits are always needed
        wanted = choice.request.prompt_logprobs
        if choice.prompt_parts is not None and wanted is not None:
            reusable = min(reusable, wanted.start - 1)
        rules = self._drafting
        drafts = rules.has_cache and (pinned or rules.wanted(self._table) > 0)
        shared = self._prefixes.find(choice, reusable, drafted=drafts)
        return shared if rules.shares_last_block else shared[:-1]
