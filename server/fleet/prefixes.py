"""Hashes of a prompt's first blocks of token ids, by which equal prefixes are recognised."""

from __future__ import annotations

from hashlib import blake2b

from engine.arrays import Int32Array

BLOCK_TOKENS = 32
"""Tokens of a block of routing: a prefix that is shorter is not worth a longer queue. It is no
block of the KV cache, of which each engine chooses its own size."""
MAX_BLOCKS = 128
"""Blocks of a prompt that are looked at: its first 4,096 tokens."""
_HASH_BYTES = 8


def prefix_hashes(token_ids: Int32Array, salt: str = "", adapter: str = "") -> list[int]:
    """Hash the prefixes that end with each of a prompt's first full blocks.

    The hashes are the same in every process. Two prompts have hash i in common if and only if they
    begin with the same i + 1 blocks and have the same salt, but for a chance of 2^-64 a pair.

    Args:
        token_ids: the prompt, int32 [prompt_len].
        salt: the request's `cache_salt`; prompts of different salts share no blocks of a cache.
        adapter: the digest of the request's adapter, likewise; empty for none. Its own hash goes
            ahead of those of blocks, so that what goes for a prefix goes for an adapter: it is
            best asked for where it is on the device.

    Returns:
        At most `MAX_BLOCKS` integers below 2^64, the shortest prefix first, after that of an
        adapter; none for a prompt of less than a block without one.
    """
    num_blocks = min(len(token_ids) // BLOCK_TOKENS, MAX_BLOCKS)
    raw = token_ids[: num_blocks * BLOCK_TOKENS].astype("<i4").tobytes()
    size = 4 * BLOCK_TOKENS
    own = blake2b(adapter.encode(), digest_size=_HASH_BYTES).digest() if adapter else b""
    # The adapter is a key: were it written beside the salt, a salt could contain it.
    hasher = blake2b(blake2b(salt.encode(), key=own).digest(), digest_size=_HASH_BYTES)
    hashes = [int.from_bytes(own, "little")] if adapter else []
    for start in range(0, len(raw), size):
        hasher.update(raw[start : start + size])
        hashes.append(int.from_bytes(hasher.copy().digest(), "little"))
    return hashes
