"""The blocks, snapshots and adapters' slots that active scoring requests hold. No torch."""

from __future__ import annotations

from engine.adapters.registry import AdapterRegistry
from engine.config import CacheConfig
from engine.memory.blocks import BlockPool
from engine.memory.snapshots import NO_SNAPSHOT, SnapshotPool
from engine.scoring.progress import ScoringProgress
from engine.scoring.states import ScoringStates, num_reserved


class ScoringHoldings:
    """What requests are given when they become active, and give back when they end.

    Attributes:
        active: the requests that hold blocks.
        prefix_caching: whether queries are found by later requests.
        prefix_queries, prefix_hits: tokens of queries looked up, and found computed.
    """

    def __init__(
        self,
        cache: CacheConfig,
        pool: BlockPool,
        snapshots: SnapshotPool | None,
        adapters: AdapterRegistry | None,
    ) -> None:
        self.active: list[ScoringProgress] = []
        self.prefix_caching = cache.prefix_caching
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._block_size = cache.block_size
        self._pool = pool
        self._snapshots = snapshots
        self._adapters = adapters

    @property
    def held_blocks(self) -> list[list[int]]:
        """The blocks of every request that holds any, for `BlockPool.check`."""
        return [blocks for progress in self.active for blocks in (progress.blocks, progress.spare)]

    @property
    def reserved_snapshots(self) -> list[int]:
        """The snapshots reserved by active requests, for `SnapshotPool.check`."""
        states = [progress.states for progress in self.active]
        return [number for own in states if own is not None for number in own.reserved]

    def admit(self, progress: ScoringProgress, promised: int) -> bool:
        """Give a request blocks and snapshots; False where there are too few, or no slot.

        Args:
            promised: free blocks that are left to generation.
        """
        pool, size, adapter = self._pool, self._block_size, progress.adapter
        if self._adapters is not None and adapter and not self._adapters.has_slot(adapter):
            return False
        shared = pool.match(progress.hashes) if self.prefix_caching else []
        restored, num_snapshots = NO_SNAPSHOT, num_reserved(progress.layout)
        if self._snapshots is not None:
            # The one that is found is held beside those that are reserved.
            hashes = progress.hashes if self._snapshots.num_snapshots > num_snapshots else []
            count, restored = self._snapshots.find(hashes[: len(shared)])
            shared = shared[:count]
        num_query, num_spare = progress.shared_len // size, progress.layout.longest
        need = num_query - len(shared) + num_spare
        if need > pool.num_free - pool.num_idle(shared) - promised:
            return False
        if self._snapshots is not None:
            progress.states = ScoringStates.reserve(self._snapshots, restored, num_snapshots)
            if progress.states is None:
                return False
        if self._adapters is not None and adapter is not None:
            self._adapters.place(adapter)
        pool.share(shared)
        granted = pool.grant(need)
        assert granted is not None, "blocks were counted before admission"
        progress.blocks = shared + granted[num_spare:]
        progress.spare = granted[:num_spare]
        progress.num_computed = progress.num_cached = len(shared) * size
        self.prefix_queries += len(progress.request.query_token_ids)
        self.prefix_hits += progress.num_cached
        self.active.append(progress)
        return True

    def register(self, progress: ScoringProgress) -> None:
        """Let the blocks of a request's query, which was computed without an error, be found."""
        if self.prefix_caching:
            for block, block_hash in zip(progress.blocks, progress.hashes, strict=True):
                self._pool.register(block, block_hash, drafted=False)

    def let_go(self, progress: ScoringProgress, query_hash: bytes | None) -> None:
        """Take blocks and snapshots from an active request; `query_hash` as in `ScoringStates`."""
        self.active.remove(progress)
        self._pool.release(progress.spare)
        self._pool.release(progress.blocks)
        if self._adapters is not None and progress.adapter is not None:
            self._adapters.let_go(progress.adapter.slot)
        if self._snapshots is not None and progress.states is not None:
            progress.states.release(self._snapshots, query_hash)
