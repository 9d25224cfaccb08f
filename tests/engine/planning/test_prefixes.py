"""Blocks that are found by what was computed into them."""

from __future__ import annotations

import numpy as np

from engine.arrays import Int32Array
from engine.config import CacheConfig
from engine.memory.blocks import BlockPool, block_hashes, versioned_salt
from engine.messages.request import Request
from engine.planning.prefixes import PrefixIndex
from engine.rows import Choice, RowTable
from sampling.params import SamplingParams

SIZE = 4


def choice(token_ids: list[int], *, index: int = 0, arrival: int = 1, salt: str = "") -> Choice:
    ids = np.array(token_ids, dtype=np.int32)
    request = Request(
        handle=1, prompt_token_ids=ids, params=SamplingParams(), max_tokens=50, cache_salt=salt
    )
    return Choice(b"", request, index, 0, arrival, ids)


class Setup:
    """A pool, a table and their prefix index."""

    def __init__(self, *, prefix_caching: bool = True) -> None:
        self.pool = BlockPool(20)
        self.table = RowTable(4, 64)
        config = CacheConfig(block_size=SIZE, prefix_caching=prefix_caching)
        self.prefixes = PrefixIndex(config, self.pool, self.table)

    def admit(self, each: Choice, num_blocks: int) -> int:
        row = self.table.claim(each, 0, len(each.token_ids), is_pinned=False)
        self.table.blocks[row] = self.pool.grant(num_blocks) or []
        self.table.parent_hash[row] = self.prefixes.last_hash(each, 0)
        return row

    def register(self, row: int, num_settled: int, num_known: int) -> None:
        self.table.num_settled[row], self.table.num_known[row] = num_settled, num_known
        self.prefixes.register(np.array([row], dtype=np.int32))

    def found(self, each: Choice, num_reusable: int = 64, *, drafted: bool = False) -> list[int]:
        return self.prefixes.find(each, num_reusable, drafted=drafted)


def test_full_blocks_are_found_as_far_as_they_are_computed_and_known() -> None:
    setup = Setup()
    row = setup.admit(choice(list(range(14))), 4)
    blocks = setup.table.blocks[row]
    for num_settled, num_known, num_found in [(3, 14, 0), (4, 14, 1), (14, 11, 2), (14, 14, 3)]:
        setup.register(row, num_settled, num_known)
        assert setup.found(choice(list(range(14)))) == blocks[:num_found]
        assert setup.table.num_hashed[row] == num_found * SIZE
    assert setup.found(choice([*range(8), 99, *range(9, 14)])) == blocks[:2]
    assert setup.found(choice([99, *range(1, 14)])) == []


def test_no_more_is_found_than_may_be_reused() -> None:
    setup = Setup()
    row = setup.admit(choice(list(range(12))), 3)
    setup.register(row, 12, 12)
    for num_reusable, num_found in [(-1, 0), (3, 0), (4, 1), (11, 2), (12, 3)]:
        assert len(setup.found(choice(list(range(12))), num_reusable)) == num_found


def test_generated_tokens_continue_the_chain_of_the_prompt() -> None:
    """Registered piece by piece, from the prompt's hashes and then from the row's tokens."""
    setup = Setup()
    prompt, generated = list(range(10)), list(range(30, 40))
    row = setup.admit(choice(prompt), 5)
    setup.table.token_ids[row, 10:20] = generated
    for num_known in (9, 13, 20):
        setup.register(row, num_known, num_known)
    whole: Int32Array = np.array(prompt + generated, dtype=np.int32)
    hashes = block_hashes(whole, SIZE, versioned_salt("", 0))
    assert setup.pool.match(hashes) == setup.table.blocks[row]
    assert setup.found(choice([*prompt, *generated])) == setup.table.blocks[row]


def test_a_row_admitted_behind_shared_blocks_registers_the_rest() -> None:
    setup = Setup()
    first = setup.admit(choice(list(range(8))), 2)
    setup.register(first, 8, 8)
    longer = choice(list(range(13)))
    shared = setup.found(longer)
    assert shared == setup.table.blocks[first]
    setup.pool.share(shared)
    row = setup.table.claim(longer, 8, 13, is_pinned=False)
    setup.table.blocks[row] = shared + (setup.pool.grant(2) or [])
    setup.table.parent_hash[row] = setup.prefixes.last_hash(longer, 2)
    setup.table.token_ids[row, 13:16] = [50, 51, 52]
    setup.register(row, 16, 16)
    again = setup.found(choice([*range(13), 50, 51, 52]))
    assert again == setup.table.blocks[row]


def test_salts_keep_prefixes_apart() -> None:
    setup = Setup()
    row = setup.admit(choice(list(range(8)), salt="a"), 2)
    setup.register(row, 8, 8)
    assert setup.found(choice(list(range(8)), salt="a")) == setup.table.blocks[row]
    assert setup.found(choice(list(range(8)), salt="b")) == []
    assert setup.found(choice(list(range(8)))) == []


def test_without_prefix_caching_only_choices_of_one_request_share() -> None:
    setup = Setup(prefix_caching=False)
    row = setup.admit(choice(list(range(8)), arrival=7), 2)
    setup.register(row, 8, 8)
    assert setup.found(choice(list(range(8)), arrival=7, index=1)) == setup.table.blocks[row]
    assert setup.found(choice(list(range(8)), arrival=8, index=1)) == []
    assert setup.found(choice(list(range(8)), arrival=7)) == [], "it computes them itself"


def test_a_row_with_a_gap_registers_blocks_that_the_drafter_lacks() -> None:
    setup = Setup()
    row = setup.admit(choice(list(range(8))), 2)
    setup.register(row, 4, 8)
    setup.table.has_gap[row] = True
    setup.register(row, 8, 8)
    assert len(setup.found(choice(list(range(8))))) == 2
    assert len(setup.found(choice(list(range(8))), drafted=True)) == 1
