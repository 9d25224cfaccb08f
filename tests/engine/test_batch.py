"""What a plan publishes to the rows on the device."""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import RequestRows
from engine.plan import StepPlan
from sampling.device.mirror import publish
from tests.engine.choices import choice

NUM_ROWS, NUM_DRAFTS = 3, 2


def made() -> RequestRows:
    return RequestRows(NUM_ROWS, 20, 4, torch.device("cpu"), num_drafts=NUM_DRAFTS)


def decoding() -> StepPlan:
    """A step of rows 0 and 1, which verify drafts."""
    prompts = [choice([5, 6]), choice([7])]
    blocks = np.array([[1, 2], [3, 4]])
    return StepPlan.of_new_rows(prompts, 3, 9, blocks, num_drafts=NUM_DRAFTS, num_proposed=2)


def test_admitted_rows_start_from_their_choice() -> None:
    rows = made()
    publish(rows.take(decoding()))
    assert rows.token_ids[:2, :2].tolist() == [[5, 6], [7, 0]]
    assert rows.limits[:2].tolist() == [9, 9]
    assert rows.block_tables[:2, :3].tolist() == [[1, 2, 0], [3, 4, 0]]


def test_drafts_of_a_rows_earlier_choice_are_not_verified() -> None:
    """Where the plan says that a row brings none, while its neighbour brings its own."""
    rows, plan = made(), decoding()
    rows.drafts.fill_(8)
    plan.undrafted = [1]
    publish(rows.take(plan))
    assert rows.drafts[:2].tolist() == [[8, 8], [-1, -1]]


def test_a_vacated_row_writes_to_nobodys_blocks() -> None:
    rows, plan = made(), decoding()
    publish(rows.take(plan))
    released = decoding()
    released.released, released.admissions, released.grants = [0], [], []
    publish(rows.take(released))
    assert not rows.block_tables[0].any()
    assert rows.block_tables[1, :2].tolist() == [3, 4]
    assert np.array_equal(rows.block_tables_np, rows.block_tables.numpy())
