"""SamplingRows and their edits: what a device row holds after a flush. Nothing is random."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.device.mirror import publish
from sampling.edits import ALWAYS, TOKEN, UNTIL, WORD_LEN, WORD_START, EditRows
from sampling.noise import TILE
from sampling.params import MAX_EDITS, SamplingParams
from sampling.rows import (
    CHOICE,
    EDITED,
    FILTERED,
    FLAGS,
    FLASHINFER,
    GRAMMAR,
    KEPT,
    LARGE_TOP_K,
    LOG_MIN_P,
    LOGPROBS,
    MASKED,
    NORMALIZED,
    NUM_EDITS,
    PENALIZED,
    PROCESSED,
    PROMPT_LEN,
    RANDOM,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    TWICE_FILTERED,
    SamplingNeeds,
    SamplingRows,
)

CPU, WIDTH = torch.device("cpu"), 2500


def make_rows(max_rows: int = 4, width: int = WIDTH) -> SamplingRows:
    return SamplingRows(max_rows, width, CPU, history=torch.zeros(max_rows, 16, dtype=torch.int32))


def add(rows: SamplingRows, row: int, key: int = 0, **params: Any) -> None:
    rows.add(row, SamplingParams(**params), seed=key, choice=row, prompt_len=2, num_tokens=2)


def needs(rows: SamplingRows, *which: int) -> SamplingNeeds:
    return rows.needs(np.array(which, dtype=np.int32))


def test_a_row_holds_its_parameters_after_a_flush() -> None:
    rows = make_rows()
    add(rows, 2, key=-(2**63), temperature=1e-8, top_k=7, top_p=0.25, min_p=0.5)
    assert not rows.ints[2].any()
    rows.flush()
    ints, floats = rows.ints[2], rows.floats[2]
    assert ints[[SEED, CHOICE, TOP_K, PROMPT_LEN]].tolist() == [-(2**63), 2, 7, 2]
    assert floats[[TEMPERATURE, TOP_P, LOG_MIN_P]].tolist() == [1e-8, 0.25, math.log(0.5)]
    assert floats.dtype == torch.float64
    assert int(ints[FLAGS]) == RANDOM | FILTERED | FLASHINFER
    assert not rows.ints[[0, 1, 3]].any()
    key = rows.noise_key(torch.tensor([2, 2]).int(), torch.tensor([5, 6]))
    assert [column.tolist() for column in key] == [[-(2**63)] * 2, [5, 6], [2, 2]]


@pytest.mark.parametrize(
    ("params", "flags"),
    [
        ({}, RANDOM),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, 0),
        ({"top_k": WIDTH}, RANDOM),  # keeps all
        ({"top_k": WIDTH - 1}, RANDOM | FILTERED | FLASHINFER),
        ({"top_k": 5, "seed": 1}, RANDOM | FILTERED),
        ({"min_p": 0.1}, RANDOM | FILTERED),
        ({"top_p": 0.9}, RANDOM | FILTERED | FLASHINFER),
        ({"top_k": LARGE_TOP_K, "top_p": 0.9, "seed": 1}, RANDOM | FILTERED),
        ({"top_k": LARGE_TOP_K + 1, "top_p": 0.9, "seed": 1}, RANDOM | FILTERED | TWICE_FILTERED),
        ({"allowed_token_ids": (3,)}, RANDOM | MASKED),
        ({"logit_bias": {5: 1.0}}, RANDOM | EDITED),
        ({"logit_bias": {5: 0.0}}, RANDOM),
        ({"min_tokens": 1}, RANDOM),
        ({"stop_token_ids": (4,)}, RANDOM),
        ({"min_tokens": 1, "stop_token_ids": (4,)}, RANDOM | EDITED),
        ({"temperature": 0.0, "bad_words": ((1, 2),)}, EDITED),
        ({"temperature": 0.0, "presence_penalty": 1.0}, PENALIZED),
        ({"logprobs": 0}, RANDOM | LOGPROBS | NORMALIZED),
        ({"logprob_token_ids": (0,), "logprobs_mode": "raw_logits"}, RANDOM | LOGPROBS),
        (
            {"top_k": 5, "logprobs": 1, "logprobs_mode": "processed_logits"},
            RANDOM | FILTERED | LOGPROBS | PROCESSED,
        ),
        ({"logprobs_mode": "processed_logits"}, RANDOM),  # nothing is reported
        ({"constrained": True, "top_k": 5}, RANDOM | FILTERED | GRAMMAR),
        ({"kept_logprob": True, "top_p": 0.5}, RANDOM | FILTERED | KEPT | LOGPROBS | NORMALIZED),
        (
            {"kept_logprob": True, "temperature": 0.0, "logprobs_mode": "processed_logits"},
            KEPT | LOGPROBS,
        ),
    ],
)
def test_flags_say_what_a_row_needs(params: dict[str, Any], flags: int) -> None:
    rows = make_rows()
    add(rows, 1, **params)
    rows.flush()
    assert rows.flags_np[1] == flags == int(rows.ints[1, FLAGS])


def test_needs_are_those_of_the_batch_alone() -> None:
    rows = make_rows(5)
    add(rows, 0)
    add(rows, 1, temperature=0.0, logprobs=6, logprob_token_ids=(1, 2, 3))
    add(rows, 2, top_p=0.5, logprobs=2, logprobs_mode="processed_logprobs")
    add(rows, 3, frequency_penalty=1.0)
    add(rows, 4, constrained=True, kept_logprob=True)
    plain = needs(rows, 0)
    assert plain == SamplingNeeds(RANDOM, greedy=False, num_top=0, num_explicit=0)
    assert (plain.random, plain.filtered, plain.edited, plain.logprobs) == (True, *[False] * 3)
    both = needs(rows, 0, 1)
    assert (both.greedy, both.logprobs, both.processed) == (True, True, False)
    assert (both.num_top, both.num_explicit) == (20, 16)  # rounded up to buckets
    three = needs(rows, 2, 0, 3)
    assert (three.filtered, three.edited, three.penalized, three.processed) == (True,) * 4
    assert (three.num_top, three.num_explicit) == (5, 0)
    assert (both.kept, three.kept) == (False, False)
    masked = needs(rows, 0, 4)
    assert (masked.edited, masked.kept, masked.logprobs, masked.processed) == (True,) * 3 + (False,)
    rows.remove(1)
    rows.remove(3)
    add(rows, 1)
    assert needs(rows, 0, 1) == plain


def test_needs_follow_a_row_that_changes_between_two_steps_of_the_same_rows() -> None:
    rows = make_rows(2)
    add(rows, 0)
    plain = needs(rows, 0)
    assert needs(rows, 0) == plain
    add(rows, 0, logprobs=2)
    assert needs(rows, 0).logprobs
    rows.remove(0)
    assert not needs(rows, 0).random
    add(rows, 1, top_p=0.5)
    assert needs(rows, 1).filtered


def test_masks_are_written_where_graphs_read_them() -> None:
    history = torch.zeros(2, 16, dtype=torch.int32)
    rows = SamplingRows(2, WIDTH, CPU, history=history, max_masks=3)
    words = -(-WIDTH // 32)
    assert rows.grammar_masks.shape == (3, words)
    address = rows.grammar_masks.data_ptr()
    masks = np.arange(2 * words, dtype=np.int32).reshape(2, words)
    rows.put_masks(masks)
    assert rows.grammar_masks.data_ptr() == address
    assert np.array_equal(rows.grammar_masks[:2].numpy(), masks)
    assert not rows.grammar_masks[2].any()
    assert make_rows().grammar_masks.shape == (0, words)


def test_more_top_tokens_than_the_vocabulary_has_are_not_needed() -> None:
    rows = make_rows(1, width=7)
    add(rows, 0, logprobs=10**6)
    assert needs(rows, 0).num_top == 7


def test_explicit_ids_are_padded_and_replaced() -> None:
    rows = make_rows()
    add(rows, 1, logprob_token_ids=(9, 8, 9))
    rows.flush()
    assert rows.explicit_ids[1, :5].tolist() == [9, 8, 9, -1, -1]
    assert (rows.explicit_ids[[0, 2, 3]] == -1).all()
    rows.remove(1)
    add(rows, 1, logprob_token_ids=(4,))
    rows.flush()
    assert rows.explicit_ids[1, :3].tolist() == [4, -1, -1]


def make_edits(width: int = WIDTH, **params: Any) -> tuple[EditRows, int]:
    edits = EditRows(3, width, CPU)
    num = edits.add(1, SamplingParams(**params))
    publish(edits.take())
    return edits, num


def test_edits_are_sorted_by_token_with_the_start_of_each_tile() -> None:
    edits, num = make_edits(
        logit_bias={TILE: 2.5, 3: -1.0, 2 * TILE - 1: 0.5, 9: 0.0},
        min_tokens=4,
        stop_token_ids=(2 * TILE, 3),
        bad_words=((7,), (11, 12, 3), (13, 0)),
    )
    assert num == 8
    table = edits.table[1, :num]
    assert table[:, TOKEN].tolist() == [0, 3, 3, 3, 7, TILE, 2 * TILE - 1, 2 * TILE]
    assert sorted(table[1:4, UNTIL].tolist()) == [0, 0, 4]
    assert table[[0, 4, 5, 6, 7], UNTIL].tolist() == [0, ALWAYS, 0, 0, 4]
    assert sorted(edits.bias[1, 1:4].tolist()) == [-1.0, 0.0, 0.0]
    assert edits.bias[1, 5:7].tolist() == [2.5, 0.5]
    assert edits.tile_start[1].tolist() == [0, 5, 7, 8]
    assert sorted(prefixes(edits, num)) == [[], [], [], [], [], [], [11, 12], [13]]


def prefixes(edits: EditRows, num: int) -> list[list[int]]:
    """The beginning of each edit's bad word, in the table's order."""
    spans = edits.table[1, :num, [WORD_START, WORD_LEN]].tolist()
    return [edits.words[1, start : start + length].tolist() for start, length in spans]


@pytest.mark.parametrize("width", [1, 31, 32, 33, TILE, WIDTH])
def test_allowed_ids_are_bits(width: int) -> None:
    ids = {0, width - 1, width // 2, min(31, width - 1)}
    edits, num = make_edits(width, allowed_token_ids=(*ids, 0))
    assert num == 0
    assert allowed(edits, width) == ids
    assert edits.allowed.shape == (3, -(-width // 32))
    assert not edits.allowed[[0, 2]].any()
    edits.add(1, SamplingParams(allowed_token_ids=(0,)))
    publish(edits.take())
    assert allowed(edits, width) == {0}


def allowed(edits: EditRows, width: int) -> set[int]:
    words: Tensor = edits.allowed[1]
    return {i for i in range(width) if int(words[i // 32]) >> (i % 32) & 1}


def test_a_row_takes_as_many_edits_as_parameters_may_name() -> None:
    params = SamplingParams(bad_words=tuple((i, i) for i in range(MAX_EDITS)))
    edits = EditRows(3, WIDTH, CPU)
    assert edits.add(1, params) == MAX_EDITS
    publish(edits.take())
    assert prefixes(edits, MAX_EDITS) == [[i] for i in range(MAX_EDITS)]
    assert edits.tile_start[1].tolist() == [0, MAX_EDITS, MAX_EDITS, MAX_EDITS]


def test_a_row_used_again_keeps_nothing_of_the_request_before() -> None:
    rows, fresh = make_rows(), make_rows()
    add(
        rows,
        1,
        key=5,
        top_k=3,
        min_p=0.5,
        logit_bias={1: 2.0, 7: 1.0},
        allowed_token_ids=(4,),
        presence_penalty=1.0,
        logprobs=5,
    )
    rows.flush()
    rows.remove(1)
    assert rows.flags_np[1] == 0
    for one in (rows, fresh):
        add(one, 1, key=6, temperature=0.5, logit_bias={9: 3.0})
        one.flush()
    assert torch.equal(rows.ints, fresh.ints)
    assert torch.equal(rows.floats, fresh.floats)
    assert int(rows.ints[1, NUM_EDITS]) == 1
    assert torch.equal(rows.edits.table[1, :1], fresh.edits.table[1, :1])
    assert torch.equal(rows.edits.tile_start, fresh.edits.tile_start)
    assert needs(rows, 1) == needs(fresh, 1)
