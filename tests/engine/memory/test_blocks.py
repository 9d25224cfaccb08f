"""The block pool's books, checked after every operation of random traffic."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.memory.blocks import NULL_BLOCK, BlockPool, block_hashes, versioned_salt


def hashes(*token_ids: int, salt: str = "") -> list[bytes]:
    return block_hashes(np.array(token_ids, dtype=np.int32), 2, salt)


def test_hash_chain_depends_on_everything_before() -> None:
    assert hashes(1, 2, 3, 4)[0] == hashes(1, 2, 9, 9)[0]
    assert hashes(1, 2, 3, 4)[1] != hashes(9, 2, 3, 4)[1]
    assert hashes(1, 2, salt="a") != hashes(1, 2, salt="b")
    assert len(hashes(1, 2, 3)) == 1, "only full blocks have a hash"


def test_no_salt_is_that_of_another_after_other_updates() -> None:
    """Salts are clients' to choose; one must not name the prefixes that old weights computed."""
    salts = ["", "x", "0/x", "1/x", "1/", "/x", "1/1/x", "11/x"]
    versioned = {versioned_salt(salt, count) for salt in salts for count in (0, 1, 11)}
    assert len(versioned) == 3 * len(salts)


def test_null_block_is_never_granted() -> None:
    pool = BlockPool(4)
    blocks = pool.grant(3)
    assert blocks is not None
    assert NULL_BLOCK not in blocks
    assert pool.grant(1) is None


def test_a_registered_block_is_found_until_it_is_granted_again() -> None:
    pool = BlockPool(3)
    [first, second] = pool.grant(2) or []
    [key] = hashes(1, 2)
    pool.register(first, key)
    pool.release([first, second])
    assert pool.match([key]) == [first]
    assert pool.grant(1) == [second], "blocks that hold nothing go first"
    assert pool.match([key]) == [first]
    assert pool.grant(1) == [first]
    assert pool.match([key]) == []


def test_the_least_recently_released_goes_first_and_ends_before_beginnings() -> None:
    pool = BlockPool(5)
    blocks = pool.grant(4) or []
    for block, key in zip(blocks, hashes(1, 2, 3, 4, 5, 6, 7, 8), strict=True):
        pool.register(block, key)
    pool.release(blocks[2:])
    pool.release(blocks[:2])
    assert pool.grant(4) == [blocks[3], blocks[2], blocks[1], blocks[0]]


def test_blocks_that_hold_nothing_go_before_all_that_may_be_found() -> None:
    pool = BlockPool(3)
    [known, unknown] = pool.grant(2) or []
    pool.register(known, hashes(1, 2)[0])
    pool.release([known])
    pool.release([unknown])
    assert pool.grant(1) == [unknown]


def test_a_block_granted_again_is_as_new() -> None:
    """Neither its hash nor what the drafter lacked of it is left."""
    pool = BlockPool(2)
    [block] = pool.grant(1) or []
    first, second = hashes(1, 2, 3, 4)
    pool.register(block, first, drafted=False)
    pool.release([block])
    assert pool.grant(1) == [block]
    pool.register(block, second, drafted=True)
    assert pool.match([first]) == []
    assert pool.match([second], drafted=True) == [block]
    assert pool.are_drafted([block])


def test_idle_blocks_are_those_that_nobody_holds() -> None:
    pool = BlockPool(4)
    blocks = pool.grant(3) or []
    for block, key in zip(blocks, hashes(1, 2, 3, 4, 5, 6), strict=True):
        pool.register(block, key)
    pool.share(blocks[:1])
    pool.release(blocks)
    assert pool.num_idle(blocks) == 2
    assert pool.num_free == 2
    pool.share(blocks)
    assert (pool.num_idle(blocks), pool.num_free, pool.num_used) == (0, 0, 3)


def test_equal_blocks_keep_the_first() -> None:
    pool = BlockPool(3)
    [first, second] = pool.grant(2) or []
    [key] = hashes(1, 2)
    pool.register(first, key)
    pool.register(second, key)
    assert pool.match([key]) == [first]
    pool.check([[first, second]])


def test_check_finds_a_lost_block() -> None:
    pool = BlockPool(4)
    blocks = pool.grant(2) or []
    with pytest.raises(AssertionError, match="holder counts"):
        pool.check([blocks[:1]])


@pytest.mark.parametrize("seed", range(20))
def test_books_balance_under_random_traffic(seed: int) -> None:
    rng = random.Random(seed)
    pool, held = BlockPool(12), []
    for step in range(300):
        action = rng.randrange(3)
        if action == 0 and (blocks := pool.grant(rng.randrange(1, 4))) is not None:
            held.append(blocks)
            for i, block in enumerate(blocks):
                if rng.random() < 0.5:
                    pool.register(block, hashes(step % 7, i)[0])
        elif action == 1 and held:
            pool.release(held.pop(rng.randrange(len(held))))
        else:
            found = pool.match([hashes(rng.randrange(7), rng.randrange(3))[0]])
            assert pool.num_idle(found) <= len(found)
            pool.share(found)
            held.append(found)
        pool.check(held)
        assert pool.num_free + pool.num_used == 11
