"""The blocks of the KV cache: their holders, and the prefixes they can be found by. No torch.

A full block's hash chains its parent's hash with its own token ids, so equal hashes mean equal
prefixes. A block that nobody holds stays findable by its hash until it is granted again; the least
recently released block is granted first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain

from engine.arrays import Int32Array

NULL_BLOCK = 0
"""The block that is never granted: padding tokens write there, unused table entries name it."""


def block_hashes(
    token_ids: Int32Array, block_size: int, salt: str = "", adapter: bytes = b""
) -> list[bytes]:
    """Chained hashes of the full blocks of `token_ids`, int32 [num_tokens]."""
    parent, raw, width = (
        root_hash(salt, adapter),
        token_ids.tobytes(),
        block_size * token_ids.itemsize,
    )
    hashes = []
    for start in range(0, len(raw) - width + 1, width):
        parent = chain_hash(parent, raw[start : start + width])
        hashes.append(parent)
    return hashes


def root_hash(salt: str = "", adapter: bytes = b"") -> bytes:
    """The hash that a first block has as its parent; only equal salts and adapters share blocks.

    Args:
        adapter: the digest of the adapter that computes the blocks; empty for the base model.
    """
    return hashlib.blake2b(salt.encode(), digest_size=16, key=adapter).digest()


def versioned_salt(salt: str, num_updates: int) -> str:
    """A salt that prefixes share which were computed after as many updates of the weights.

    The count is there before the first update too: without it, a salt that begins with a number
    would name prefixes of that update.
    """
    return f"{num_updates}/{salt}"


def chain_hash(parent: bytes, token_ids: bytes) -> bytes:
    """The hash of a full block: of its parent's hash and the bytes of its int32 ids."""
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
        """The number of blocks nobody holds, shareable ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """The number of blocks somebody holds."""
        return self.num_blocks - 1 - len(self._free)

    def match(self, hashes: Iterable[bytes], *, drafted: bool = False) -> list[int]:
        """The blocks of the longest known prefix of a hash chain, without holding them.

        Args:
            drafted: end the prefix before the first block that the drafter's cache lacks.
        """
        blocks = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None or (drafted and block in self._undrafted):
                break
            blocks.append(block)
        return blocks

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds; sharing them lowers `num_free` by as many."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def grant(self, count: int) -> list[int] | None:
        """Take `count` blocks, contents unknown, with one holder each; None if too few are free."""
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
        """Drop a holder of each block. Ends of prefixes are granted again before beginnings."""
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
        """Let others find a held, full block that was computed from usable logits.

        Of blocks with equal hashes the first stays the one that is found, unless the drafter's
        cache has only the later one.
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

    def forget_all(self) -> None:
        """Let no block be found any more; those that are held stay so."""
        for block in list(self._hash_of):
            self._forget(block)

    def _forget(self, block: int) -> None:
        self._undrafted.discard(block)
        if block_hash := self._hash_of.pop(block, None):
            del self._block_of[block_hash]

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Assert that the books agree with every holder's blocks; for tests and idle moments."""
        holders = [0] * self.num_blocks
        for block in chain.from_iterable(held):
            holders[block] += 1
        assert holders == self._holders, "holder counts differ from the holders"
        free = {block for block in range(1, self.num_blocks) if holders[block] == 0}
        assert free == set(self._free), "free list differs from unheld blocks"
        assert holders[NULL_BLOCK] == 0, "the null block was granted"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of, "hash maps differ"
