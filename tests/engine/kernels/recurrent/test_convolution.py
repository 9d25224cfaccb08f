"""Short convolutions against their reference: the twin, and the kernel."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.recurrent import convolution, reference
from engine.kernels.recurrent.convolution import (
    Convolution,
    Gates,
    TileShape,
    causal_convolution_torch,
    causal_convolution_triton,
    decode_shape,
    ring_length,
)
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.recurrent.calls import (
    MAX_DRAFTS,
    Compute,
    Part,
    extent_of,
    state_rows,
)
from tests.engine.kernels.where import DEVICES

WAYS = [
    pytest.param(causal_convolution_torch, "cpu", id="twin"),
    *(pytest.param(causal_convolution_triton, *each.values, marks=each.marks) for each in DEVICES),
]
CHANNELS = 11


class Inputs:
    """Texts, the outputs of each as a whole, and a ring that holds no number before it is used."""

    def __init__(
        self,
        lens: list[int],
        width: int = 4,
        bias: bool = False,
        silu: bool = True,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.device = device
        self.texts = [torch.randn(n, CHANNELS).to(dtype) for n in lens]
        weight = torch.randn(CHANNELS, width).to(dtype)
        offset = torch.randn(CHANNELS).to(dtype) if bias else None
        self.kernel = Convolution(
            weight.to(device), None if offset is None else offset.to(device), silu
        )
        outs = [reference.causal_convolution(text, weight, offset) for text in self.texts]
        self.wanted = [F.silu(out) if silu else out for out in outs]
        shape = (8, ring_length(width, MAX_DRAFTS), CHANNELS)
        self.ring = torch.full(shape, torch.nan, dtype=dtype, device=device)

    def compute(
        self, compute: Compute, parts: list[Part], num_certain: int | None = None
    ) -> list[torch.Tensor]:
        pieces = [self.texts[part.text][part.begin : part.end] for part in parts]
        rows, extent = state_rows(parts, self.device), extent_of(parts, num_certain)
        # Beside other columns, as a product's.
        wide = torch.cat([torch.cat(pieces), torch.zeros(sum(map(len, pieces)), 3)], dim=1)
        x = wide.to(self.device, self.ring.dtype)[:, :CHANNELS]
        out = compute(x, self.kernel, self.ring, rows, extent)
        return list(torch.split(out.cpu(), [len(piece) for piece in pieces]))

    def check(self, out: torch.Tensor, text: int, begin: int) -> None:
        """Compare the outputs of tokens from `begin` on.

        W products, summed, and a silu whose slope is at most 1.1: 2 W roundings of a sum of
        magnitudes of at most W * 16, and one of the output's dtype.
        """
        wanted = self.wanted[text][begin : begin + len(out)]
        width = self.kernel.weight.shape[1]
        atol = 2 * width * width * 16 * torch.finfo(torch.float32).eps
        rtol = torch.finfo(out.dtype).eps
        torch.testing.assert_close(out.double(), wanted, atol=atol, rtol=rtol)


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("width", [2, 3, 4, 7])
@pytest.mark.parametrize(("bias", "silu"), [(True, True), (False, True), (False, False)])
def test_rows_of_different_lengths(
    width: int, bias: bool, silu: bool, compute: Compute, device: str
) -> None:
    inputs = Inputs([1, 40, 6], width, bias, silu, device=device)
    parts = [Part(1, 0, 40, 2), Part(0, 0, 1, 1), Part(2, 0, 6, 3)]
    for part, out in zip(parts, inputs.compute(compute, parts), strict=True):
        inputs.check(out, part.text, 0)


@pytest.mark.parametrize(("compute", "device"), WAYS)
def test_bfloat16_is_rounded_once(compute: Compute, device: str) -> None:
    inputs = Inputs([9], bias=True, dtype=torch.bfloat16, device=device)
    (out,) = inputs.compute(compute, [Part(0, 0, 9, 1)])
    inputs.check(out, 0, 0)


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("width", [2, 4, 7])
def test_any_cut_has_the_bits_of_the_whole(width: int, compute: Compute, device: str) -> None:
    inputs = Inputs([38], width, silu=False, device=device)  # torch's silu has bits by length
    (whole,) = inputs.compute(compute, [Part(0, 0, 38, 1)])
    for cuts in [(1, 2), (3, 20), (width - 1, 37), (33, 34)]:
        bounds = [0, *cuts, 38]
        outs = [
            inputs.compute(compute, [Part(0, begin, end, 2)])[0] for begin, end in pairwise(bounds)
        ]
        assert torch.equal(torch.cat(outs), whole)


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("accepted", [(0, 0, 0), (3, 3, 3), (1, 0, 3)])
def test_refused_drafts_leave_no_trace(
    accepted: tuple[int, ...], compute: Compute, device: str
) -> None:
    inputs = Inputs([20], device=device)
    true = inputs.texts[0].clone()
    inputs.compute(compute, [Part(0, 0, 2, 1)])
    position, replays = 2, 0
    for count in accepted:
        end = position + 1 + MAX_DRAFTS
        inputs.texts[0][position + 1 + count : end] = torch.randn(MAX_DRAFTS - count, CHANNELS)
        part = Part(0, position, end, 1, replays=replays)
        (out,) = inputs.compute(compute, [part], num_certain=1)
        inputs.check(out[: 1 + count], 0, position)
        inputs.texts[0].copy_(true)
        position, replays = position + 1 + count, count


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("begin", [0, 14])
@pytest.mark.parametrize("num_certain", [None, 24])
def test_rows_continue_from_snapshots(
    num_certain: int | None, begin: int, compute: Compute, device: str
) -> None:
    """Of a boundary anywhere in the call, its first tokens among them; prompts, and rows that
    decode, whose kernel is another."""
    inputs = Inputs([40, 40], device=device)
    inputs.texts[1], inputs.wanted[1] = inputs.texts[0], inputs.wanted[0]
    if begin:
        inputs.compute(compute, [Part(0, 0, begin, 1)])
    ends = [(16, 4), (32, 5), (38, 6)]
    inputs.compute(compute, [Part(0, begin, 38, 1, snapshots=ends)])
    kept = inputs.ring[4].clone()
    parts = [Part(0, 16, 40, 2, source=4), Part(1, 32, 36, 3, source=5), Part(0, 38, 40, 1, 6)]
    for part, out in zip(parts, inputs.compute(compute, parts, num_certain), strict=True):
        inputs.check(out, part.text, part.begin)
    (out,) = inputs.compute(compute, [Part(1, 36, 40, 3)], num_certain)
    inputs.check(out, 1, 36)
    assert torch.equal(inputs.ring[4].nan_to_num(), kept.nan_to_num())


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("boundary", [3, 4, 5])
def test_snapshots_between_drafts(boundary: int, compute: Compute, device: str) -> None:
    inputs = Inputs([12], device=device)
    ends = [(boundary, 4)]
    inputs.compute(compute, [Part(0, 0, 2, 1)])
    inputs.compute(compute, [Part(0, 2, 6, 1, snapshots=ends)], num_certain=1)
    if boundary > 3:
        assert inputs.ring[4].isnan().all()
    inputs.compute(compute, [Part(0, 5, 9, 1, replays=2, snapshots=ends)], num_certain=1)
    (out,) = inputs.compute(compute, [Part(0, boundary, 12, 2, source=4)])
    inputs.check(out, 0, boundary)


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("num_certain", [None, 1])
def test_gates_multiply_inputs_and_outputs(
    num_certain: int | None, compute: Compute, device: str
) -> None:
    """They round as products of tensors do, and the ring keeps inputs that they have multiplied."""
    parts = [Part(0, 0, 6, 1, snapshots=[(1, 4)]), Part(1, 0, 3, 2)]
    rows, extent = state_rows(parts, device), extent_of(parts, num_certain)
    dtype = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter does not round
    inputs = Inputs([6, 3], dtype=dtype, silu=False, device=device)
    columns = torch.randn(9, 3 * CHANNELS).to(device, dtype)
    before, after, x = columns.chunk(3, dim=1)
    wanted = compute(before * x, inputs.kernel, inputs.ring, rows, extent) * after
    ring, other = inputs.ring.clone(), inputs.ring.fill_(torch.nan)
    assert torch.equal(compute(x, inputs.kernel, other, rows, extent, Gates(before, after)), wanted)
    torch.testing.assert_close(other, ring, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("num_certain", [None, 1])
def test_padding_reads_zeros_and_writes_nothing(
    num_certain: int | None, compute: Compute, device: str
) -> None:
    inputs = Inputs([4, 4], bias=True, device=device)
    out = torch.full((8, CHANNELS), torch.nan, device=device)
    parts = [Part(1, 0, 0, 0), Part(0, 0, 4, 0), Part(1, 0, 4, 3)]
    _, *outs = inputs.compute(partial(compute, out=out), parts, num_certain)
    assert not outs[0].any()
    assert inputs.ring[0].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [3, 4])
def test_bits_do_not_depend_on_the_shape_of_a_launch(
    width: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on whether a row decodes. Rows continue, one of them from another slot."""
    num_channels, lens, dtype = 300, [3, 1, 2], torch.bfloat16
    x = torch.randn(sum(lens), num_channels).to(device, dtype)
    weight = torch.randn(num_channels, width).to(device, dtype)
    before = torch.randn(6, ring_length(width, MAX_DRAFTS), num_channels).to(device, dtype)
    parts = [Part(0, 9, 12, 1), Part(1, 1, 2, 2, source=3), Part(2, 5, 7, 4, snapshots=[(6, 5)])]
    rows, results = state_rows(parts, device), []

    def compute(num_certain: int | None) -> None:
        ring, kernel = before.clone(), Convolution(weight)
        extent = extent_of(parts, num_certain)
        results.append((causal_convolution_triton(x, kernel, ring, rows, extent), ring))

    compute(None)
    for shape in (TileShape(4, 128, 4), TileShape(4, 512, 4), TileShape(8, 256, 8)):
        monkeypatch.setattr(convolution, "decode_shape", lambda *_, own=shape: own)
        monkeypatch.setattr(convolution, "PROMPT", shape._replace(tokens=2))
        compute(3)
        compute(None)
    for out, ring in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(ring, results[0][1])


def test_few_rows_have_many_programs() -> None:
    assert decode_shape(1, 10_240, 1) == TileShape(1, 128, 1)
    assert decode_shape(256, 10_240, 1) == TileShape(1, 512, 2)
    assert decode_shape(256, 10_240, 4) == TileShape(4, 256, 2)
