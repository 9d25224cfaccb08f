"""Hashes of prefixes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.fleet.prefixes import BLOCK_TOKENS, MAX_BLOCKS, prefix_hashes

TOKENS = st.lists(st.integers(0, 3), max_size=5 * BLOCK_TOKENS)


def hashes(ids: list[int], salt: str = "", adapter: str = "") -> list[int]:
    return prefix_hashes(np.array(ids, dtype=np.int32), salt, adapter)


@given(TOKENS, TOKENS, TOKENS)
def test_hashes_are_equal_as_far_as_blocks_are(
    shared: list[int], left: list[int], right: list[int]
) -> None:
    """Of at most 10 pairs of distinct 64-bit values an example: no two are ever equal by chance."""
    a, b = shared + left, shared + right
    same = 0
    while a[: same + 1] == b[: same + 1] and same < min(len(a), len(b)):
        same += 1
    blocks = same // BLOCK_TOKENS
    assert hashes(a)[:blocks] == hashes(b)[:blocks]
    assert not set(hashes(a)[blocks:]) & set(hashes(b)[blocks:])


def test_only_full_blocks_count_and_not_too_many() -> None:
    assert hashes([1] * (BLOCK_TOKENS - 1)) == []
    assert len(hashes([1] * (2 * BLOCK_TOKENS + 5))) == 2
    assert len(hashes([1] * (BLOCK_TOKENS * (MAX_BLOCKS + 3)))) == MAX_BLOCKS


def test_salts_share_nothing() -> None:
    ids = [1] * BLOCK_TOKENS
    assert len({hashes(ids)[0], hashes(ids, "a")[0], hashes(ids, "b")[0]}) == 3


def test_no_salt_is_like_an_adapter() -> None:
    """Nor like another salt with an adapter, wherever the two might be put together."""
    ids = [1] * BLOCK_TOKENS
    pairs = [("a", "b"), ("a\0b", ""), ("a\0", "b"), ("", "b"), ("\0b", ""), ("ab", ""), ("b", "")]
    pairs += [("a\0b", "c"), ("a", "b\0c")]
    assert len({hashes(ids, *pair)[-1] for pair in pairs}) == len(pairs)


def test_every_process_hashes_alike() -> None:
    """A value written down: another process, version or machine must find it too."""
    assert hashes(list(range(BLOCK_TOKENS))) == [11528756770738371805]
