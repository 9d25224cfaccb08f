"""Gathered values and sums of ranks, whose mailboxes are buffers of one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sampling.device import exchange
from sampling.device.exchange import MAX_PACKED, Mailboxes
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.where import DEVICES
from tests.sampling.device.exchanging import make_mailboxes


def exchanged(values: list[Tensor], boxes: list[Mailboxes], *, summed: bool) -> list[Tensor]:
    """What each rank gets: at once on a GPU, else all send before any receives."""
    shape = values[0].shape if summed else (len(values), *values[0].shape)
    outs = [torch.empty(shape, dtype=value.dtype, device=value.device) for value in values]
    if values[0].is_cuda:
        streams = [torch.cuda.Stream() for _ in values]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        for rank, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                exchange._launch(
                    values[rank], outs[rank].view(-1), boxes[rank], rank, summed=summed
                )
        torch.cuda.synchronize()
        return outs
    for sends in (True, False):
        for rank, value in enumerate(values):
            exchange._launch(
                value,
                outs[rank].view(-1),
                boxes[rank],
                rank,
                summed=summed,
                sends=sends,
                receives=not sends,
            )
    return outs


def ordered_sum(values: list[Tensor]) -> Tensor:
    total = values[0].float()
    for value in values[1:]:
        total = total + value.float()
    return total.to(values[0].dtype)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_are_in_rank_order(num_ranks: int, dtype: torch.dtype, where: str) -> None:
    """Bit for bit, at sizes of one program, of several, and of several steps."""
    if where == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter cuts off where it should round to bfloat16")
    boxes = make_mailboxes(num_ranks, where)
    generator = torch.Generator().manual_seed(1)
    for count in (1, 48, 5000, MAX_PACKED + 17, MAX_PACKED * 2):
        values = [
            (torch.randn(count, generator=generator) * 10.0 ** (4 - 3 * rank)).to(dtype).to(where)
            for rank in range(num_ranks)
        ]
        for out in exchanged(values, boxes, summed=True):
            assert torch.equal(out, ordered_sum(values)), count


@pytest.mark.parametrize("where", DEVICES)
def test_letters_follow_each_other(where: str) -> None:
    """Sums of changing sizes, one after another, also where numbers run over."""
    boxes = make_mailboxes(2, where)
    for box in boxes:
        box.sent.fill_(2**31 - 3)
        for reported in box.received:
            reported.fill_(2**31 - 3)
    for turn in range(8):
        count = (100, MAX_PACKED + 16, 5000, MAX_PACKED + 1)[turn % 4]
        values = [torch.full((count,), float(rank + turn), device=where) for rank in (1, 2)]
        for out in exchanged(values, boxes, summed=True):
            assert torch.equal(out, values[0] + values[1])


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
@pytest.mark.parametrize("count", [100, MAX_PACKED + 1], ids=["packed", "reported"])
def test_a_letter_waits_while_the_next_arrives(count: int) -> None:
    """Rank 0, which has all of letter 1, sends letter 2 before rank 1 has read letter 1."""
    boxes = make_mailboxes(2, "cpu")
    first, second = ([torch.full((count,), float(turn + r)) for r in (0, 1)] for turn in (1, 5))
    outs = [torch.zeros(count) for _ in range(4)]

    def launch(rank: int, values: list[Tensor], out: Tensor, *, sends: bool) -> None:
        exchange._launch(
            values[rank], out, boxes[rank], rank, summed=True, sends=sends, receives=not sends
        )

    launch(0, first, outs[0], sends=True)
    launch(1, first, outs[1], sends=True)
    launch(0, first, outs[0], sends=False)
    launch(0, second, outs[2], sends=True)
    launch(1, first, outs[1], sends=False)
    launch(1, second, outs[3], sends=True)
    launch(0, second, outs[2], sends=False)
    launch(1, second, outs[3], sends=False)
    for out, wanted in zip(outs, (3.0, 3.0, 11.0, 11.0), strict=True):
        assert torch.equal(out, torch.full((count,), wanted))


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_large_sums_take_several_letters(num_ranks: int) -> None:
    boxes = make_mailboxes(num_ranks, "cuda")
    values = [torch.randn(30_000_016, device="cuda").bfloat16() for _ in range(num_ranks)]
    for out in exchanged(values, boxes, summed=True):
        assert torch.equal(out, ordered_sum(values))


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("count", [6, 4097, MAX_PACKED + 5])
def test_gathered_values_are_every_ranks(count: int, where: str) -> None:
    boxes = make_mailboxes(2, where)
    values = [torch.arange(count, dtype=torch.int32, device=where) + rank * 7 for rank in (0, 1)]
    for out in exchanged(values, boxes, summed=False):
        assert torch.equal(out, torch.stack(values))


@pytest.mark.gpu
def test_a_graph_replays_exchanges() -> None:
    boxes = make_mailboxes(2, "cuda")
    values = [torch.zeros(8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    graphs, outs = [], []

    def chain(rank: int) -> Tensor:
        out = values[rank]
        for _ in range(5):
            out = exchange.sum_ranks(out, boxes[rank], rank)
        return out

    def together(work: Callable[[int], object]) -> None:
        for rank, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                work(rank)
        torch.cuda.synchronize()

    together(chain)
    for rank, stream in enumerate(streams):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outs.append(chain(rank))
        graphs.append(graph)
    for turn in range(20):
        for value in values:
            value.fill_(turn)
        torch.cuda.synchronize()
        together(lambda rank: graphs[rank].replay())
        assert all(bool((out == 32.0 * turn).all()) for out in outs)
