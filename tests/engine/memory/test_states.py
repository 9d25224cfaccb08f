"""The slots of rows, what is published of them, and a step's rows as layers see them."""

from __future__ import annotations

import numpy as np
import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import ModelInputs
from engine.memory.pages import KVCache
from engine.memory.state_rows import Extent, StateRows
from engine.memory.states import (
    NEVER,
    RowStates,
    StateSpec,
    StateTensor,
    bytes_per_slot,
    snapshot_multiple,
    text_states,
)
from engine.messages.request import Request
from engine.plan import Admission, SnapshotGrant, StepPlan
from engine.rows import Choice
from sampling.device.mirror import publish
from sampling.params import SamplingParams
from tests.engine.memory.toy import ToyModel, reference
from tests.engine.memory.toy_engine import LOGPROB_ERROR

SPECS = [
    StateSpec((StateTensor((2, 3), torch.float32), StateTensor((5,), torch.bfloat16)), chunk=6),
    StateSpec((StateTensor((), torch.int64),)),
]
CPU = torch.device("cpu")


def make_choice() -> Choice:
    ids = np.arange(9, dtype=np.int32)
    own = Request(handle=0, prompt_token_ids=ids, params=SamplingParams(), max_tokens=1)
    return Choice(b"", own, 0, 0, 0, ids)


def published(states: RowStates, admissions: list[Admission], grants: list[SnapshotGrant]) -> None:
    plan = StepPlan.of_new_rows([make_choice()], 1, 9, np.ones((1, 1), dtype=np.int64))
    plan.admissions, plan.snapshots = admissions, grants
    publish(states.take(plan))


def test_bytes_and_multiples() -> None:
    assert bytes_per_slot(SPECS) == 2 * 3 * 4 + 5 * 2 + 8
    assert bytes_per_slot([]) == 0
    assert snapshot_multiple(SPECS, 4) == 12
    assert snapshot_multiple([], 16) == 16


def test_slots_are_null_then_rows_then_snapshots() -> None:
    states = RowStates(SPECS, max_rows=3, num_snapshots=2, device=CPU)
    assert states.table.slots.tolist() == [1, 2, 3, 0]
    shapes = [tensor.shape for layer in states.layers for tensor in layer]
    assert shapes == [(7, 2, 3), (7, 5), (7,)]
    choice = make_choice()
    admissions = [Admission(2, choice, 8, 20, snapshot=2), Admission(0, choice, 0, 20)]
    published(states, admissions, [SnapshotGrant(2, (4, 8), (1, 2))])
    assert states.table.sources.tolist() == [0, 0, 6, 0]
    assert states.table.entered.tolist() == [0, 0, 8, 0]
    assert states.table.snapshot_ends[2].tolist() == [4, 8]
    assert states.table.snapshot_slots[2].tolist() == [5, 6]
    published(states, [], [SnapshotGrant(2, (12,), (1,))])
    assert states.table.snapshot_ends[2].tolist() == [12, NEVER]
    published(states, [Admission(2, choice, 0, 20)], [])  # another choice's row
    assert states.table.snapshot_ends[2].tolist() == [NEVER, NEVER]
    assert states.table.sources[2] == 0


def test_parts_are_told_by_kind_and_not_by_length() -> None:
    """A prompt of as many tokens as a row that decodes brings is still a prompt."""
    states = RowStates(SPECS, max_rows=4, num_snapshots=0, device=CPU)
    starts_np = np.array([0, 4, 8, 12, 13], dtype=np.int32)
    columns = torch.arange(4, dtype=torch.int32)
    pairs = torch.arange(8).view(4, 2)
    starts = torch.from_numpy(starts_np)
    whole = StateRows(starts, columns, columns, columns, columns, pairs, pairs)
    for num_decodes in range(5):
        parts = states.parts(whole, starts_np, num_decodes).parts
        assert len(parts) == (num_decodes > 0) + (num_decodes < 4)
        first = 0
        for part in parts:
            count = len(part.rows.slots)
            is_decode = first < num_decodes
            assert part.rows.slots.tolist() == list(range(first, first + count))
            assert part.rows.starts.tolist() == starts_np[first : first + count + 1].tolist()
            longest = int(np.diff(starts_np[first : first + count + 1]).max())
            assert part.extent == Extent(longest, 1 if is_decode else None)
            first += count
        assert first == 4


def test_a_lone_text_goes_on_from_part_to_part() -> None:
    model, ids = ToyModel(), torch.from_numpy(np.random.default_rng(0).integers(0, 60, 21))
    pages = KVCache(model.attention_specs, 7, 4, torch.float32, CPU)
    attention = PlainAttention(model.attention_specs, pages)
    part = text_states(model.state_specs(0), CPU)
    logits, blocks = [], torch.arange(1, 7, dtype=torch.int32)
    for start, end in ((0, 1), (1, 9), (9, 21)):
        attention.begin(AttentionInputs.of_row(blocks, 4, start, end))
        own, positions = ids[start:end].int(), torch.arange(start, end)
        inputs = ModelInputs(own, positions, attention, part(start, end))
        logits.append(model.logits(model.forward(inputs).final))
    assert (torch.cat(logits) - reference(ids.tolist())).abs().max() < LOGPROB_ERROR
    assert text_states([], CPU)(0, 4) is None
