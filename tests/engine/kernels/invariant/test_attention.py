"""Invariant attention against float64, and the same bits by every way to compute it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.invariant.attention import invariant_decode, invariant_prefill
from engine.kernels.invariant.shares import ShareScratch, num_shares
from engine.kernels.prefill_attention import tiling_of
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.paged_cases import DTYPES, SPEC, SPECS, STEPS, Case, lie_apart, to_or_none
from tests.engine.kernels.where import DEVICES

GROUPS = {
    "one head each": AttentionSpec(2, 2, 64, scale=0.125),
    "four to one": AttentionSpec(8, 2, 128, scale=0.088),
    "sixteen to one": AttentionSpec(16, 1, 128, scale=0.088),
    "wide": AttentionSpec(4, 2, 256, scale=0.0625),
    "odd": AttentionSpec(6, 2, 40, scale=0.15),
}


class _Invariant(Case):
    """A case of the invariant kernels."""

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
        tiling = tiling_of(q.shape[2], q.dtype, self.device)
        invariant_prefill(spec, self.queries(q), pages, tables, tiles, out, tiling, scales)

    def decode(self, ends: list[tuple[int, int]], query_len: int, programs: int) -> torch.Tensor:
        """Attend from `query_len` tokens of each (row, keys its last token sees)."""
        firsts, first = [], 0
        for keys, queries in self.rows:
            firsts.append(first - (keys - queries))  # where position 0 would be
            first += queries
        at = torch.tensor(
            [firsts[row] + end - query_len + i for row, end in ends for i in range(query_len)]
        )
        q = self.q[at].to(self.device)
        spec = replace(
            self.spec,
            alibi_slopes=to_or_none(self.spec.alibi_slopes, self.device),
            sinks=to_or_none(self.spec.sinks, self.device),
        )
        most = max(end for _, end in ends)
        scratch = ShareScratch([spec], len(ends), most, self.device, query_len)
        scratch._num_programs = programs * len(ends) * spec.num_kv_heads
        scratch._divided = len(ends) * spec.num_kv_heads
        cells = scratch._divided * scratch.most * query_len * spec.num_q_heads // spec.num_kv_heads
        scratch.sums = torch.full((cells * spec.head_dim,), torch.nan, device=self.device)
        scratch.stats = torch.full((cells * 2,), torch.nan, device=self.device)
        out = torch.full_like(q, torch.nan)
        tables = self.tables[[row for row, _ in ends]].to(self.device)
        lengths = torch.tensor([end for _, end in ends], dtype=torch.int32, device=self.device)
        q, pages = self.queries(q), self.pages.to(self.device)
        for _ in range(2):  # the second finds arrivals as the first left them
            invariant_decode(spec, q, pages, tables, lengths, out, scratch, query_len)
        return out.cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("step", STEPS)
def test_prefill_equals_float64(step: str, name: str, dtype: torch.dtype, device: str) -> None:
    _Invariant(SPECS[name], STEPS[step], dtype, device).check()


@pytest.mark.parametrize("device", DEVICES)
def test_queries_may_lie_apart(device: str) -> None:
    """As those of a view of a wider product do; what is between them is not theirs."""

    case, ends = _Invariant(SPEC, [(70, 3), (20, 9)], torch.float32, device), [(0, 69), (1, 20)]
    wanted = [case.attend(), *(case.decode(ends, 2, programs) for programs in (1, 2))]
    case.queries = lie_apart
    found = [case.attend(), *(case.decode(ends, 2, programs) for programs in (1, 2))]
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_every_way_has_the_same_bits(name: str, dtype: torch.dtype, device: str) -> None:
    """Prefilled whole, in chunks, decoded and verified, by one program a row and by several."""
    check_bits(_Invariant(SPECS[name], [(200, 200), (130, 70), (65, 65)], dtype, device))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", GROUPS)
def test_every_shape_has_the_same_bits(name: str, dtype: torch.dtype) -> None:
    rows = [(900, 300), (513, 513), (257, 100), (40, 40)]
    check_bits(_Invariant(GROUPS[name], rows, dtype, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [1300, 8191, 8193, 9216, 9217, 12000])
def test_long_rows_have_the_same_bits(keys: int) -> None:
    spec = replace(SPEC, num_q_heads=8, head_dim=128, scale=0.088)
    case = _Invariant(spec, [(keys, 130), (300, 40)], torch.bfloat16, "cuda")
    together = case.attend()
    for programs in (1, 3, 64):
        ends = [(0, keys), (0, keys - 1), (0, keys - 100), (1, 300)]
        decoded = case.decode(ends, 1, programs)
        for i, (row, end) in enumerate(ends):
            at = 129 + end - keys if row == 0 else 130 + 39 + end - 300
            assert torch.equal(decoded[i], together[at]), (programs, end)


def check_bits(case: _Invariant) -> None:
    """Every token's bits are those of its prompt prefilled in one step of all rows."""
    together, first = case.attend(), 0
    for row, (keys, queries) in enumerate(case.rows):
        own = together[first : first + queries]
        assert torch.equal(case.attend([row]), own)
        for cut in (1, 13, queries - 1):
            chunks = [case.attend([row], slice(0, cut)), case.attend([row], slice(cut, None))]
            assert torch.equal(torch.cat(chunks), own)
        step = max(1, queries // 5) if INTERPRETED else 1
        ends = [(row, end) for end in range(keys - queries + 1, keys + 1, step)]
        ends.append((row, keys))
        for programs in (1, 2, 5):
            decoded = case.decode(ends, 1, programs)
            for i, (_, end) in enumerate(ends):
                assert torch.equal(decoded[i], own[end - keys + queries - 1]), (programs, end)
        for query_len in (2, 5):
            some = [(row, end) for end in {keys, max(keys - 20, keys - queries + query_len)}]
            verified = torch.split(case.decode(some, query_len, 2), query_len)
            for tokens, (_, end) in zip(verified, some, strict=True):
                at = end - keys + queries
                assert torch.equal(tokens, own[at - query_len : at])
        first += queries


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [None, 19])
def test_rows_whose_tokens_see_one_another(window: int | None, device: str) -> None:
    """Five tokens of each row see all of its keys, or those of their windows up to its end."""
    spec = replace(SPEC, is_causal=False, sliding_window=window)
    case = _Invariant(spec, [(200, 5), (65, 5), (7, 5)], torch.float32, device)
    for programs in (1, 3):
        found = case.decode([(row, keys) for row, (keys, _) in enumerate(case.rows)], 5, programs)
        torch.testing.assert_close(found.double(), case.reference(), rtol=0, atol=case.tolerance)


def test_shares_begin_at_fixed_positions() -> None:
    ends = (1, 64, 65, 1024, 1025, 1280, 1281, 8192, 8193, 9216, 9217)
    assert [num_shares(n) for n in ends] == [1, 1, 2, 16, 17, 17, 18, 44, 45, 45, 46]
