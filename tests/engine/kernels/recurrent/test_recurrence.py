"""The recurrence against its reference: the twin, and both kernels."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from engine.kernels.recurrent import recurrence_serial as recurrence_serial_module
from engine.kernels.recurrent.matrices import CHUNK, TokenInputs
from engine.kernels.recurrent.recurrence import recurrence_torch
from engine.kernels.recurrent.recurrence_chunked import recurrence_chunked
from engine.kernels.recurrent.recurrence_serial import (
    MAX_BLOCKS,
    num_blocks,
    recurrence_serial,
)
from engine.memory.state_rows import Extent, StateRows
from tests.engine.kernels.recurrent.calls import (
    BY_CHANNEL,
    DELTA,
    MAX_DRAFTS,
    SPACE,
    Compute,
    Part,
    Texts,
    state_rows,
)
from tests.engine.kernels.where import DEVICES

PREFILLS = [
    pytest.param(recurrence_torch, "cpu", id="twin"),
    *(pytest.param(recurrence_serial, *each.values, marks=each.marks) for each in DEVICES),
    *(pytest.param(recurrence_chunked, *each.values, marks=each.marks) for each in DEVICES),
]
DECODES = PREFILLS[: 1 + len(DEVICES)]
KINDS = [DELTA, BY_CHANNEL, SPACE]


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(4, 2, 12, 10), (3, 3, 16, 33)])
def test_whole_texts(
    kind: str, sizes: tuple[int, int, int, int], compute: Compute, device: str
) -> None:
    heads, key_heads, k, v = sizes
    lens = [1, 2 * CHUNK + 3, CHUNK, 5]
    texts = Texts(kind, lens, heads, key_heads, k, v, device=device)
    parts = [Part(text, 0, n, slot=text + 1) for text, n in enumerate(lens)]
    for text, out in enumerate(texts.compute(compute, parts)):
        torch.testing.assert_close(out.double(), texts.wanted[text], **texts.tolerance(text))
        texts.check_state(text + 1, text, lens[text])


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inputs_of_sixteen_bits_are_computed_in_float32(
    dtype: torch.dtype, compute: Compute, device: str
) -> None:
    texts = Texts(DELTA, [CHUNK + 4], dtype=dtype, device=device)
    (out,) = texts.compute(compute, [Part(0, 0, CHUNK + 4, slot=1)])
    torch.testing.assert_close(out.double(), texts.wanted[0], **texts.tolerance(0))
    texts.check_state(1, 0, CHUNK + 4)


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_any_cut_is_the_whole(kind: str, cut: int, compute: Compute, device: str) -> None:
    total = 2 * CHUNK + 7
    texts = Texts(kind, [total], device=device)
    (whole,) = texts.compute(compute, [Part(0, 0, total, slot=1)])
    (first,) = texts.compute(compute, [Part(0, 0, cut, slot=2)])
    (second,) = texts.compute(compute, [Part(0, cut, total, slot=2)])
    got = torch.cat([first, second])
    torch.testing.assert_close(got.double(), texts.wanted[0], **texts.tolerance(0))
    if cut % CHUNK == 0:  # the same chunks, so the same bits
        assert torch.equal(got, whole)
        assert torch.equal(texts.memory.matrix[1], texts.memory.matrix[2])


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
def test_bits_do_not_depend_on_the_rows_beside(compute: Compute, device: str) -> None:
    lens = [CHUNK + 2, 3, 2 * CHUNK]
    texts = Texts(DELTA, lens, device=device)
    order = (1, 2, 0)  # so that long rows begin anywhere in the batch
    together = [Part(text, 0, lens[text], slot=text + 1) for text in order]
    outs = dict(zip(order, texts.compute(compute, together), strict=True))
    for text, n in enumerate(lens):
        (alone,) = texts.compute(compute, [Part(text, 0, n, slot=7)])
        assert torch.equal(alone, outs[text])
        assert torch.equal(texts.memory.matrix[7], texts.memory.matrix[text + 1])


@pytest.mark.parametrize(("compute", "device"), DECODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accepted", [(0, 0, 0), (3, 3, 3), (1, 0, 3), (2, 3, 0)])
def test_refused_drafts_leave_no_trace(
    kind: str, accepted: tuple[int, ...], compute: Compute, device: str
) -> None:
    """Each step computes one token that is kept and three drafts; the next begins after those
    accepted. Beside it a row has no drafts that are accepted."""
    total = 4 * (1 + MAX_DRAFTS)
    texts = Texts(kind, [total + 2, total + 2], device=device)
    true = [tuple(each.clone() for each in text) for text in texts.inputs]
    texts.compute(compute, [Part(0, 0, 2, slot=1), Part(1, 0, 2, slot=2)])
    positions, replays = [2, 2], [0, 0]
    for count in accepted:
        taken = [count, 0]
        parts = []
        for text in range(2):
            at = positions[text]
            texts.refuse(text, at + 1 + taken[text], at + 1 + MAX_DRAFTS)
            parts.append(Part(text, at, at + 1 + MAX_DRAFTS, text + 1, replays=replays[text]))
        outs = texts.compute(compute, parts, num_certain=1)
        for text in range(2):
            at, num_kept = positions[text], 1 + taken[text]
            torch.testing.assert_close(
                outs[text][:num_kept].double(),
                texts.wanted[text][at : at + num_kept],
                **texts.tolerance(text),
            )
            texts.check_state(text + 1, text, at + 1)
            for each, kept in zip(texts.inputs[text], true[text], strict=True):
                each.copy_(kept)
            positions[text], replays[text] = at + num_kept, taken[text]
    # A step that brings one token enters what the last one left.
    parts = [Part(i, positions[i], positions[i] + 1, i + 1, replays=replays[i]) for i in range(2)]
    texts.compute(compute, parts, num_certain=1)
    for text in range(2):
        texts.check_state(text + 1, text, positions[text] + 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_blocks_of_a_program(
    kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that replay drafts, make snapshots and bring drafts, beside padding."""
    torch.manual_seed(0)
    texts = Texts(kind, [9, 9], k=16, v=43, device=device)
    ends = [(4, 5), (5, 6)]
    begin = [Part(0, 0, 3, slot=1), Part(1, 0, 2, slot=2)]
    drafts = [Part(0, 3, 7, 1, snapshots=ends[:1]), Part(1, 2, 6, 2), Part(0, 0, 1, slot=0)]
    rest = [Part(0, 6, 9, 1, replays=2, snapshots=ends), Part(1, 3, 4, 2)]
    results = []
    for blocks in (1, 2, 4, 6):
        monkeypatch.setattr(recurrence_serial_module, "num_blocks", lambda *_, own=blocks: own)
        for each in (texts.memory.matrix, *texts.memory.drafted):
            each.fill_(7.0)
        outs = texts.compute(recurrence_serial, begin)
        for parts in (drafts, rest):
            outs += texts.compute(recurrence_serial, parts, num_certain=1)
        kept = (texts.memory.matrix, *texts.memory.drafted)
        results.append([*outs, *(each.clone() for each in kept)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_few_rows_have_many_programs() -> None:
    blocks = {rows: num_blocks(48 * rows, 128) for rows in (1, 4, 16, 64, 256)}
    assert blocks == {1: 1, 4: 1, 16: 3, 64: MAX_BLOCKS, 256: MAX_BLOCKS}
    assert num_blocks(1 << 20, 20) == 3  # no more than there are


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
@pytest.mark.parametrize("kind", KINDS)
def test_snapshots_of_a_prompt(kind: str, compute: Compute, device: str) -> None:
    """Copies at block boundaries are those of the whole, and rows continue from them; the
    snapshot stays as it is."""
    total = 3 * CHUNK + 5
    texts = Texts(kind, [total], device=device)
    ends = [(CHUNK, 4), (3 * CHUNK, 5), (total, 6)]
    texts.compute(compute, [Part(0, 0, total, slot=1, snapshots=ends)])
    for end, slot in ends:
        texts.check_state(slot, 0, end)
    before = texts.memory.matrix[4].clone()
    parts = [Part(0, CHUNK, total, 2, source=4), Part(0, 3 * CHUNK, total, 3, source=5)]
    outs = texts.compute(compute, parts)
    for part, out in zip(parts, outs, strict=True):
        torch.testing.assert_close(
            out.double(), texts.wanted[0][part.begin :], **texts.tolerance(0)
        )
        texts.check_state(part.slot, 0, total)
    assert torch.equal(texts.memory.matrix[4], before)


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
def test_snapshots_are_on_the_grid_of_positions(compute: Compute, device: str) -> None:
    """Of a prompt that was cut off the grid."""
    total = 2 * CHUNK + 3
    texts = Texts(DELTA, [total], device=device)
    texts.compute(compute, [Part(0, 0, 5, slot=1)])
    ends = [(CHUNK, 4), (2 * CHUNK, 5)]
    texts.compute(compute, [Part(0, 5, total, slot=1, snapshots=ends)])
    for end, slot in ends:
        texts.check_state(slot, 0, end)


@pytest.mark.parametrize(("compute", "device"), DECODES)
@pytest.mark.parametrize("boundary", [3, 4, 5])
def test_snapshots_between_drafts(boundary: int, compute: Compute, device: str) -> None:
    """A boundary is copied by the step that enters the token before it: the one that accepts it
    where it was a draft, never the one that may refuse it."""
    texts = Texts(DELTA, [12], device=device)
    ends = [(boundary, 4)]
    texts.compute(compute, [Part(0, 0, 2, slot=1)])
    untouched = texts.memory.matrix[4].clone()
    texts.compute(compute, [Part(0, 2, 6, 1, snapshots=ends)], num_certain=1)
    if boundary > 3:
        assert torch.equal(texts.memory.matrix[4], untouched)
    texts.compute(compute, [Part(0, 5, 9, 1, replays=2, snapshots=ends)], num_certain=1)
    texts.check_state(4, 0, boundary)


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_a_part_of_the_tokens(kind: str, compute: Compute, device: str) -> None:
    """Those of other rows, before and after them, are neither read nor written."""
    lens = [3 * CHUNK + 2, 2 * CHUNK + 3, 5]
    texts = Texts(kind, lens, device=device)
    for each in texts.inputs[0]:
        each.fill_(torch.nan)
    rows = state_rows([Part(0, 0, lens[0], 1), Part(1, 0, lens[1], 2), Part(2, 0, 5, 3)], device)
    first, second = (
        StateRows(rows.starts[i : i + 2], *(x[i : i + 1] for x in rows[1:])) for i in (1, 2)
    )
    tokens = TokenInputs(
        *(torch.cat([*each, each[0]]).to(device) for each in zip(*texts.inputs, strict=True))
    )
    out = torch.full(tokens.v.shape, 7.0, device=device)
    for own, length in ((first, lens[1]), (second, 5)):
        compute(tokens, texts.rule, texts.weights_there, texts.memory, own, Extent(length), out)
    before, *outs, after = torch.split(out.cpu(), [*lens, lens[0]])
    assert (before == 7).all()
    assert (after == 7).all()
    for text, read in enumerate(outs, 1):
        torch.testing.assert_close(read.double(), texts.wanted[text], **texts.tolerance(text))
        texts.check_state(text + 1, text, lens[text])


@pytest.mark.parametrize(("compute", "device"), PREFILLS)
@pytest.mark.parametrize("num_certain", [None, 1])
def test_padding_reads_zeros_and_writes_nothing(
    num_certain: int | None, compute: Compute, device: str
) -> None:
    """Whatever was where it goes, and beside rows of no tokens."""
    if num_certain and compute is recurrence_chunked:
        pytest.skip("rows that decode are computed token by token")
    length = CHUNK + 3
    texts = Texts(DELTA, [length, 4], device=device)
    before = [each.clone() for each in (texts.memory.matrix, *texts.memory.drafted)]
    parts = [Part(1, 0, 0, slot=0), Part(0, 0, length, slot=0), Part(1, 0, 4, slot=3)]
    out = torch.full((length + 4, texts.heads, texts.v), torch.nan, device=device)
    _, *outs = texts.compute(partial(compute, out=out), parts, num_certain)
    assert not outs[0].any()
    torch.testing.assert_close(outs[1].double(), texts.wanted[1], **texts.tolerance(1))
    after = (texts.memory.matrix, *texts.memory.drafted)
    for was, now in zip(before, after, strict=True):
        assert torch.equal(was[:3], now[:3])
