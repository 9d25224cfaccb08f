"""Rows of which ranks send some words, or nothing; mailboxes are buffers of one device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sampling.device import row_exchange
from sampling.device.exchange import NUM_PROGRAMS, Mailboxes
from sampling.device.ranks import RaggedRows
from sampling.device.row_exchange import LETTER_WORDS
from tests.engine.kernels.where import DEVICES
from tests.sampling.device.exchanging import make_mailboxes

UNTOLD = -77


def gathered(
    words: list[Tensor], counts: list[Tensor], width: int, boxes: list[Mailboxes]
) -> list[RaggedRows]:
    """What each rank is reported: at once on a GPU, else all send before any receives."""
    shape = (len(words), len(words[0]))
    reported = [
        RaggedRows(
            torch.full((*shape, width), UNTOLD, dtype=torch.int32, device=each.device),
            torch.full(shape, UNTOLD, dtype=torch.int32, device=each.device),
        )
        for each in words
    ]
    if words[0].is_cuda:
        streams = [torch.cuda.Stream() for _ in words]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        for rank, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                row_exchange.launch(words[rank], counts[rank], reported[rank], boxes[rank], rank)
        torch.cuda.synchronize()
        return reported
    for sends in (True, False):
        for rank, each in enumerate(words):
            row_exchange.launch(
                each,
                counts[rank],
                reported[rank],
                boxes[rank],
                rank,
                sends=sends,
                receives=not sends,
            )
    return reported


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("width", [48, 3000, LETTER_WORDS + 40])
def test_rows_are_told_as_far_as_they_must(width: int, num_ranks: int, where: str) -> None:
    """Turn by turn through the same mailboxes; some rows are left out, some have no words."""
    boxes = make_mailboxes(num_ranks, where)
    generator = torch.Generator().manual_seed(3)
    for turn in range(3):
        num_rows = 5 if where == "cpu" else NUM_PROGRAMS + 60  # two rows for some programs
        closed = torch.rand(num_rows, generator=generator) < 0.4
        words, counts = [], []
        for rank in range(num_ranks):
            # Own widths, as of shards that are a tile apart, and strides of their own.
            own = torch.randint(2**31 - 1, (num_rows, width + 8), generator=generator)
            words.append(own.int().to(where)[:, : width - rank])
            count = torch.randint(0, width - rank + 1, (num_rows,), generator=generator)
            count[turn] = 0
            counts.append(count.masked_fill(closed, -1).int().to(where))
        for reported in gathered(words, counts, width, boxes):
            assert torch.equal(reported.counts, torch.stack(counts))
            for rank in range(num_ranks):
                for row in range(num_rows):
                    end = max(int(counts[rank][row]), 0)
                    assert torch.equal(reported.words[rank, row, :end], words[rank][row, :end])
                    assert (reported.words[rank, row, end:] == UNTOLD).all()


@pytest.mark.gpu
def test_a_graph_replays_rows_and_sums_in_turn() -> None:
    """Letters of both kernels go through the same places."""
    from sampling.device.exchange import sum_ranks

    boxes = make_mailboxes(2, "cuda")
    words = [torch.zeros((200, 512), dtype=torch.int32, device="cuda") for _ in range(2)]
    counts = torch.arange(200, dtype=torch.int32, device="cuda") * 3 - 90
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    graphs: list[torch.cuda.CUDAGraph] = []
    found: list[tuple[RaggedRows, Tensor]] = []

    def work(rank: int) -> tuple[RaggedRows, Tensor]:
        reported = row_exchange.gather_rows(words[rank], counts, 512, boxes[rank], rank)
        return reported, sum_ranks(words[rank].float(), boxes[rank], rank)

    for rank, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            work(rank)
    torch.cuda.synchronize()
    for rank, stream in enumerate(streams):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            found.append(work(rank))
        graphs.append(graph)
    for turn in range(20):
        for rank, each in enumerate(words):
            each.fill_(turn * 10 + rank)
        torch.cuda.synchronize()
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for reported, total in found:
            assert (total == 20 * turn + 1).all()
            for rank in range(2):
                assert (reported.words[rank, 199, :507] == turn * 10 + rank).all()
