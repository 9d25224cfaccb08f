"""Tiles whose keys are divided among programs: against float64, and how many programs there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels import prefill_shares
from engine.kernels.prefill_attention import prefill_attention, tile_width, tiling_of
from engine.kernels.prefill_shares import (
    FULL,
    LONG,
    MAX_SHARES,
    MOST,
    Divided,
    PrefillRoom,
    PrefillScratch,
    num_shares,
)
from engine.memory.pages import FP8_CACHE
from sampling.device.triton_support import INTERPRETED, triton
from tests.engine.kernels.paged_cases import DTYPES, SPEC, SPECS, Case, Rows
from tests.engine.kernels.where import DEVICES
from tests.no_gpu.cuda import pretended_gpu

LEAST = 32
ROWS: Rows = [(300, 3), (63, 20), (200, 40), (7, 7), (129, 1)]
"""Of five shares, of one, of five and fewer, of one, of four at `LEAST` keys."""
WIDE = {**SPECS, "window of shares": replace(SPEC, sliding_window=150)}


class DividedCase(Case):
    """Rows whose tiles are divided among up to `most` programs, in a room that holds NaN.

    Attributes:
        was_divided: whether the last launch left anything in the room.
    """

    most = 5
    was_divided = False

    def run(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        pages: torch.Tensor,
        tables: torch.Tensor,
        tiles: torch.Tensor,
        out: torch.Tensor,
        scales: torch.Tensor | None,
    ) -> None:
        """Two launches: the second finds what the first left, and comes to the same bits."""
        group = spec.num_q_heads // spec.num_kv_heads
        count = group * tile_width(group, tiling_of(spec.head_dim, q.dtype, q.device))
        places = len(tiles) * spec.num_kv_heads
        sums = torch.full((places * self.most * count, spec.head_dim), torch.nan, device=q.device)
        stats = torch.full((len(sums), 2), torch.nan, device=q.device)
        arrivals = torch.zeros(places, dtype=torch.int32, device=q.device)
        divided = Divided(PrefillRoom(sums, stats, arrivals, LEAST), self.most)
        outs = []
        for _ in range(2):
            prefill_attention(spec, q, pages, tables, tiles, out, scales=scales, divided=divided)
            assert not arrivals.any()
            outs.append(out.clone())
            out.fill_(torch.nan)
        assert torch.equal(outs[0].nan_to_num(), outs[1].nan_to_num())
        out.copy_(outs[1])
        self.was_divided = not bool(stats.isnan().all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("most", [2, 5, MAX_SHARES])
def test_divided_tiles_equal_float64(most: int, name: str, dtype: torch.dtype, device: str) -> None:
    case = DividedCase(WIDE[name], ROWS, dtype, device)
    case.most = most
    case.check()
    assert case.was_divided or WIDE[name].sliding_window == 19


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head_dim", [16, 40, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (71, 1)])
def test_shapes(heads: tuple[int, int], head_dim: int, device: str) -> None:
    spec = AttentionSpec(*heads, head_dim, scale=head_dim**-0.5)
    case = DividedCase(spec, [(9, 9), (170, 3), (190, 20)], torch.float16, device)
    case.check()
    assert case.was_divided


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SPECS)
def test_a_tile_of_one_share_has_the_bits_of_one_that_is_not_divided(
    name: str, device: str
) -> None:
    divided = DividedCase(SPECS[name], ROWS, torch.float16, device).attend()
    whole = Case(SPECS[name], ROWS, torch.float16, device).attend()
    assert torch.equal(divided[3:23], whole[3:23])
    assert torch.equal(divided[63:70], whole[63:70])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WIDE)
def test_tiles_of_no_tokens_change_nothing(name: str, device: str) -> None:
    case = DividedCase(WIDE[name], ROWS, torch.float16, device)
    wanted = case.attend()
    padded = case.attend(padding=5)
    assert torch.equal(padded[:-5], wanted)
    assert padded[-5:].isnan().all()  # as it was: nothing is written


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["plain", "sinks", "all"])
def test_float8_is_read_times_its_scales(name: str, device: str) -> None:
    """As from a cache of what it stands for, whose numbers float16 holds exactly."""
    case = DividedCase(SPECS[name], ROWS, torch.float16, device)
    heads = SPECS[name].num_kv_heads
    scales = torch.tensor([[0.5, 2.0, 1.0, 8.0], [4.0, 0.25, 2.0, 1.0]])[:, :heads].contiguous()
    stored = case.pages.nan_to_num().to(FP8_CACHE)
    case.pages = (stored.float() * scales[:, None, :, None]).half()
    wanted = case.attend()
    case.pages = stored
    assert torch.equal(case.attend(scales=scales), wanted)


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", ["plain", "sinks"])
def test_the_sum_does_not_depend_on_who_comes_last(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = DividedCase(SPECS[name], ROWS, torch.float32, "cpu")
    wanted = case.attend()
    builder = triton.runtime.interpreter.interpreter_builder
    begin = builder.set_grid_idx
    backwards = lambda x, y, z: begin(x, builder.grid_dim[1] - 1 - y, z)  # noqa: E731
    monkeypatch.setattr(builder, "set_grid_idx", backwards)
    assert torch.equal(case.attend(), wanted)


@pytest.mark.parametrize(
    ("num_programs", "num_keys", "full", "wanted"),
    [
        (28, 8064, 264, 9),  # 64 tokens after 8,000: six query heads a key head, four of these
        (16, 8064, 264, 15),  # the same tokens of two query heads a key head, eight of these
        (4, 1 << 20, 264, MAX_SHARES),
        (132, 8064, 264, 2),
        (133, 8064, 264, 1),
        (500, 8064, 264, 1),
        (28, 2 * LONG - 1, 264, 1),
        (28, 2 * LONG, 264, 2),
        (28, 1, 264, 1),
        (0, 0, 264, 1),
    ],
)
def test_as_many_shares_as_fill_the_gpu(
    num_programs: int, num_keys: int, full: int, wanted: int
) -> None:
    assert num_shares(num_programs, num_keys, full) == wanted


def test_shares_fit_the_scratch() -> None:
    num_queries, head_dim = 60, 256
    with pretended_gpu():
        scratch = PrefillScratch(num_queries, num_queries * head_dim, torch.device("cuda"))
        sizes = scratch.sums.numel(), scratch.stats.numel(), scratch.arrivals.numel()
    most = {False: 0, True: 0}
    for some_empty in most:
        for num_programs in range(1, 1000):
            divided = scratch.divided(num_programs, 1 << 20, some_empty=some_empty)
            if divided is not None:
                cells = num_programs * divided.most
                most[some_empty] = max(most[some_empty], cells)
                assert cells * num_queries * head_dim <= sizes[0]
                assert cells * num_queries * 2 <= sizes[1]
                assert num_programs <= sizes[2]
    assert most[True] * FULL == most[False] * MOST


def test_short_rows_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = PrefillScratch(64, 64 * 16, torch.device("cpu"))
    assert scratch.divided(2, 2 * LONG - 1, some_empty=False) is None
    divided = scratch.divided(2, 2 * LONG, some_empty=False)
    assert divided is not None
    assert (divided.most, divided.room.least) == (2, LONG)
    monkeypatch.setattr(prefill_shares, "LONG", 2 * LONG)
    assert scratch.divided(2, 2 * LONG, some_empty=True) is None
