"""Pages of KV cache: who holds them, and which hold a prefix that others may share. No torch.

A full block's hash chains its parent's hash with its own token ids, so equal hashes mean equal
prefixes. A block nobody holds stays findable by its hash until it is granted to someone else;
the least recently released goes first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain

from engine.request import Int32Array

NULL_BLOCK = 0
"""Never granted: padding tokens write there, and unused table entries point at it."""


def block_hashes(token_ids: Int32Array, block_size: int, salt: str = "") -> list[bytes]:
    """Chained hashes of the full blocks of int32 [num_tokens]."""
    parent, raw, width = root_hash(salt), token_ids.tobytes(), block_size * token_ids.itemsize
    hashes = []
    for start in range(0, len(raw) - width + 1, width):
        parent = chain_hash(parent, raw[start : start + width])
        hashes.append(parent)
    return hashes


def root_hash(salt: str = "") -> bytes:
    """The parent of a first block; only equal salts share blocks."""
    return hashlib.blake2b(salt.encode(), digest_size=16).digest()


def chain_hash(parent: bytes, token_ids: bytes) -> bytes:
    """Hash of a full block, the bytes of its int32 ids, given its parent's."""
    return hashlib.blake2b(parent + token_ids, digest_size=16).digest()


class BlockPool:
    """Grants, shares and releases blocks 1 .. num_blocks - 1; block 0 is `NULL_BLOCK`."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict((b, None) for b in range(1, num_blocks))
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._undrafted: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, shareable ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks somebody holds."""
        return self.num_blocks - 1 - len(self._free)

    def match(self, hashes: Iterable[bytes], *, drafted: bool = False) -> list[int]:
        """Blocks of the longest known prefix of a hash chain; nobody's hold changes.

        Args:
            drafted: as far as the drafter's cache has it too.
        """
        blocks = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None or (drafted and block in self._undrafted):
                break
            blocks.append(block)
        return blocks

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds, so that sharing them lowers `num_free`."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def grant(self, count: int) -> list[int] | None:
        """`count` blocks with one holder each and unknown contents; None if too few are free."""
        if count > len(self._free):
            return None
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._holders[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to blocks that `match` found or that a holder passes on."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a holder. The end of a prefix is reused before its beginning."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def are_drafted(self, blocks: Iterable[int]) -> bool:
        """Whether the drafter's cache has all of these registered blocks."""
        return self._undrafted.isdisjoint(blocks)

    def register(self, block: int, block_hash: bytes, *, drafted: bool = True) -> None:
        """Let others find a held, full, cleanly computed block.

        The first of equal ones stays, unless only the later one is in the drafter's cache too.
        """
        if block in self._hash_of:
            return
        known = self._block_of.get(block_hash)
        if known is not None:
            if not drafted or known not in self._undrafted:
                return
            self._forget(known)
        self._hash_of[block] = block_hash
        self._block_of[block_hash] = block
        if not drafted:
            self._undrafted.add(block)

    def _forget(self, block: int) -> None:
        self._undrafted.discard(block)
        if block_hash := self._hash_of.pop(block, None):
            del self._block_of[block_hash]

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Assert the books against every holder's blocks; for tests and idle moments."""
        holders = [0] * self.num_blocks
        for block in chain.from_iterable(held):
            holders[block] += 1
        assert holders == self._holders, "holder counts differ from the holders"
        free = {block for block in range(1, self.num_blocks) if holders[block] == 0}
        assert free == set(self._free), "free list differs from unheld blocks"
        assert holders[NULL_BLOCK] == 0, "the null block was granted"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of, "hash maps differ"
