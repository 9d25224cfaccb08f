"""The decode kernel against the torch twin: float32 sums of at most a thousand terms apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.kernels.decode.attention import paged_decode
from engine.kernels.decode.split_keys import DecodeScratch
from engine.memory.pages import FP8_CACHE, KVCache
from tests.engine.kernels.where import DEVICES
from tests.no_gpu.cuda import pretended_gpu

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)


class Case:
    """Rows of some lengths, `query_len` tokens each, in a cache whose other cells hold NaN."""

    def __init__(
        self,
        spec: AttentionSpec,
        lengths: list[int],
        block_size: int,
        device: str,
        query_len: int = 1,
    ) -> None:
        torch.manual_seed(0)
        self.spec = spec
        counts = [-(-length // block_size) for length in lengths]
        cache = KVCache([spec], sum(counts) + 1, block_size, torch.float32, torch.device(device))
        layer = cache.layers[0].fill_(float("nan"))
        tables = torch.zeros((len(lengths), max(counts)), dtype=torch.int32)
        blocks = torch.split(torch.randperm(sum(counts)) + 1, counts)
        for row, (length, own) in enumerate(zip(lengths, blocks, strict=True)):
            tables[row, : len(own)] = own
            for i in range(length):
                layer[own[i // block_size], :, i % block_size].normal_()
        self.cache = cache
        self.scales: torch.Tensor | None = None
        self.tables = tables.to(device)
        self.lengths_np = np.array(lengths, dtype=np.int32)
        self.lengths = torch.from_numpy(self.lengths_np).to(device)
        self.query_len = query_len
        num_tokens = query_len * len(lengths)
        self.q = torch.randn(num_tokens, spec.num_q_heads, spec.head_dim).to(device)

    def twin(self) -> torch.Tensor:
        clean = KVCache([self.spec], 1, self.cache.block_size, torch.float32, self.q.device)
        read = self.cache.layers[0] if self.scales is None else self.read
        clean.layers = [read.nan_to_num()]
        plain = PlainAttention([self.spec], clean)
        starts = np.arange(len(self.lengths) + 1, dtype=np.int32) * self.query_len
        plain.begin(
            AttentionInputs(
                query_starts=torch.from_numpy(starts).to(self.q.device),
                query_starts_np=starts,
                seq_lens=self.lengths,
                block_tables=self.tables,
                slots=torch.ones(len(self.q), dtype=torch.int64, device=self.q.device),
                seq_lens_np=self.lengths_np,
                max_query_len=self.query_len,
            )
        )
        return plain.attend_stored(0, self.q)

    def kernel(self, scratch: DecodeScratch) -> torch.Tensor:
        out = torch.full_like(self.q, float("nan"), memory_format=torch.contiguous_format)
        paged_decode(
            self.spec,
            self.q,
            self.cache.layers[0],
            self.tables,
            self.lengths,
            out,
            scratch,
            self.query_len,
            self.scales,
        )
        return out

    def in_fp8(self) -> None:
        """Round the cache to float8; the twin goes on to read the same numbers as float32."""
        num_heads = self.spec.num_kv_heads
        exponents = torch.arange(2 * num_heads, device=self.q.device).view(2, num_heads) % 5 - 3
        self.scales = torch.exp2(exponents.float())
        factors = self.scales[:, None, :, None]
        stored = (self.cache.layers[0] / factors).to(FP8_CACHE)
        self.read = stored.float() * factors
        self.cache.layers = [stored]


SPECS = [
    SPEC,
    replace(SPEC, sliding_window=19),
    replace(SPEC, softcap=2.0),
    replace(SPEC, num_kv_heads=1, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.0])),
    replace(SPEC, num_kv_heads=4, head_dim=24, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0])),
    replace(SPEC, sliding_window=100, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0])),
    replace(SPEC, is_causal=False),
    replace(SPEC, is_causal=False, sliding_window=19),
]


def on_device(spec: AttentionSpec, device: str) -> AttentionSpec:
    slopes, sinks = spec.alibi_slopes, spec.sinks
    return replace(
        spec,
        alibi_slopes=None if slopes is None else slopes.to(device),
        sinks=None if sinks is None else sinks.to(device),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lengths", [[1], [300], [600, 511], [64, 1, 65, 200, 7], [129] * 9])
def test_kernel_equals_twin(lengths: list[int], spec: AttentionSpec, device: str) -> None:
    check_against_twin(Case(on_device(spec, device), lengths, 16, device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [24, 128])
def test_pages_that_do_not_divide_a_block(page: int, device: str) -> None:
    check_against_twin(Case(SPEC, [300, 64, 7], page, device))


# A window of 19 begins within a block of keys, and moves over its edge between two tokens.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("query_len", "lengths"),
    [(2, [2, 300]), (5, [5]), (5, [64, 6, 65, 84, 83, 7]), (5, [129] * 9), (9, [1000, 9])],
)
def test_several_tokens_a_row(
    query_len: int, lengths: list[int], spec: AttentionSpec, device: str
) -> None:
    check_against_twin(Case(on_device(spec, device), lengths, 16, device, query_len))


# The lowest key seen is the last of a block of 64 keys, the first of the next, and so on: a start
# one too high would leave that key out.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [1, 19, 64, 65])
@pytest.mark.parametrize("query_len", [1, 5])
def test_windows_that_begin_around_the_edge_of_a_block(
    query_len: int, window: int, device: str
) -> None:
    lowest = [edge + shift for edge in (64, 192) for shift in (-2, -1, 0, 1)]
    lengths = [key + window + query_len - 1 for key in lowest]
    spec = replace(SPEC, sliding_window=window)
    check_against_twin(Case(spec, lengths, 16, device, query_len))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("query_len", [1, 5])
def test_keys_in_fp8_are_those_that_were_stored(
    query_len: int, spec: AttentionSpec, device: str
) -> None:
    case = Case(on_device(spec, device), [300, 64, 7], 16, device, query_len)
    case.in_fp8()
    check_against_twin(case)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2], SPECS[4], replace(SPEC, head_dim=128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp8_reaches_half_precision_in_pairs(
    dtype: torch.dtype, spec: AttentionSpec, device: str
) -> None:
    case = Case(on_device(spec, device), [300, 64, 7], 16, device)
    case.in_fp8()
    case.q = (case.q * 1e3).to(dtype) / 1e3  # 1e3 times too large for a sum of squares in float16
    narrow, case.q = case.q, case.q.float()
    wanted = case.twin()
    case.q = narrow
    found = case.kernel(DecodeScratch([case.spec], 3, narrow.device)).float()
    # Weights are rounded to float16, 2^-11 of each, and the output to the queries' dtype, which
    # Triton's interpreter cuts off: a whole unit in the last place.
    largest = float(case.read.nan_to_num()[:, 1].abs().max())
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found, wanted, rtol=rounding, atol=2.0**-11 * largest)


def check_against_twin(case: Case) -> None:
    device, num_rows = case.q.device, len(case.lengths)
    scratch = DecodeScratch([case.spec], num_rows, device, case.query_len)
    scratch.sums.fill_(float("nan"))
    scratch.stats.fill_(float("nan"))
    wanted = case.twin()
    for _ in range(2):  # the second finds what the first left in the scratch
        torch.testing.assert_close(case.kernel(scratch), wanted, rtol=1e-4, atol=1e-5)
        assert not scratch.arrivals.any()


@pytest.mark.parametrize("device", DEVICES)
def test_a_token_is_what_it_would_be_alone(device: str) -> None:
    """In float32 verification may not move a logit further than the order of sums does."""
    case = Case(SPEC, [90, 40], 16, device, query_len=3)
    together = case.kernel(DecodeScratch([SPEC], 2, case.q.device, 3))
    q, lengths = case.q.view(2, 3, *case.q.shape[1:]), case.lengths
    case.query_len = 1
    for token in range(3):
        case.q, case.lengths = q[:, token].contiguous(), lengths - 2 + token
        alone = case.kernel(DecodeScratch([SPEC], 2, case.q.device))
        torch.testing.assert_close(together.view_as(q)[:, token], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_heads_at_any_stride(device: str) -> None:
    case = Case(SPEC, [40, 3], 8, device)
    wanted = case.twin()
    case.q = case.q.transpose(0, 1).contiguous().transpose(0, 1)
    scratch = DecodeScratch([SPEC], 2, torch.device(device))
    torch.testing.assert_close(case.kernel(scratch), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("query_len", [1, 5])
def test_shares_fill_the_gpu_and_fit_the_scratch(query_len: int) -> None:
    spec = replace(SPEC, num_q_heads=15, num_kv_heads=5)
    scratch = DecodeScratch([spec], 64, torch.device("cpu"), query_len)
    for num_rows in range(1, 65):
        full, most = scratch.shares(num_rows, 5)
        assert 1 <= full <= most
        if most > 1:
            assert num_rows * 5 * most * 3 * query_len * 16 <= len(scratch.sums)
            assert num_rows * 5 * most * 3 * query_len * 2 <= len(scratch.stats)


def test_float8_keys_are_shared_by_twice_as_many() -> None:
    """A program has half their bytes on their way."""
    spec = replace(SPEC, num_q_heads=16, num_kv_heads=8)
    with pretended_gpu():
        scratch = {
            size: DecodeScratch([spec], 64, torch.device("cuda"), 1, size) for size in (1, 2)
        }
        room = {size: scratch[size].sums.numel() for size in scratch}
    shares = {size: scratch[size].shares(8, 8) for size in scratch}
    assert shares == {1: (8, 16), 2: (4, 16)}
    for size, (_, most) in shares.items():
        assert 8 * 16 * most * 16 <= room[size]


def test_a_lone_row_is_shared_by_more() -> None:
    """As its programs have one block of keys in flight, not two."""
    spec = replace(SPEC, num_q_heads=16, num_kv_heads=8)
    with pretended_gpu():
        scratch = DecodeScratch([spec], 64, torch.device("cuda"))
        room = scratch.sums.numel()
    assert scratch.shares(1, 8) == (33, 64)
    assert scratch.shares(2, 8) == (16, 16)
    assert room >= 8 * 64 * 2 * 16


@pytest.mark.parametrize("device", DEVICES[:1])  # whose number of programs is known
@pytest.mark.parametrize(("length", "is_shared"), [(511, False), (512, True)])
def test_only_long_rows_are_shared_by_more_than_fill_the_gpu(
    length: int, is_shared: bool, device: str
) -> None:
    case = Case(SPEC, [length] * 2, 16, device)
    scratch = DecodeScratch([SPEC], 2, case.q.device)
    assert scratch.shares(2, SPEC.num_kv_heads) == (1, 2)
    scratch.sums.fill_(float("nan"))
    case.kernel(scratch)
    assert bool(scratch.sums.isfinite().any()) == is_shared
