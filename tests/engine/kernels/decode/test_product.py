"""The decode kernel over QKV products, against rotation, store and attention one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.contracts.heads import Heads, Rotation
from engine.kernels.decode.attention import paged_decode_product
from engine.kernels.decode.product import Product
from engine.kernels.decode.split_keys import DecodeScratch
from engine.kernels.rope import rope_table
from engine.memory.pages import KVCache
from tests.engine.attention.float8 import in_float8
from tests.engine.kernels.where import DEVICES

PAGE = 16
SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
SPECS = [
    SPEC,
    replace(SPEC, sliding_window=19),
    replace(SPEC, sliding_window=1),
    replace(SPEC, softcap=2.0, num_kv_heads=4),
    replace(SPEC, num_kv_heads=1, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.0])),
    replace(SPEC, head_dim=24, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0])),
]


class Case:
    """Rows of some lengths in a cache of `dtype` that lacks their newest keys and values."""

    def __init__(
        self,
        spec: AttentionSpec,
        lengths: list[int],
        device: str,
        dtype: torch.dtype,
        norm: torch.dtype | None,
        float8: bool = False,
        num_between: int = 0,
    ) -> None:
        torch.manual_seed(0)
        self.spec, self.float8, num_rows = spec, float8, len(lengths)
        counts = [-(-length // PAGE) for length in lengths]
        self.layer = torch.randn(
            (sum(counts) + 1, 2, PAGE, spec.num_kv_heads, spec.head_dim), device=device
        ).to(dtype)
        tables = torch.zeros((num_rows, max(counts)), dtype=torch.int32)
        slots = torch.zeros(num_rows, dtype=torch.int64)
        blocks = torch.split(torch.randperm(sum(counts)) + 1, counts)
        for row, (length, own) in enumerate(zip(lengths, blocks, strict=True)):
            tables[row, : len(own)] = own
            slots[row] = own[(length - 1) // PAGE] * PAGE + (length - 1) % PAGE
        self.tables, self.slots = tables.to(device), slots.to(device)
        self.lengths_np = np.array(lengths, dtype=np.int32)
        self.lengths = torch.from_numpy(self.lengths_np).to(device)
        num_heads = spec.num_q_heads + spec.num_kv_heads
        weights = torch.randn(num_heads, spec.head_dim, device=device)
        norms = None if norm is None else weights.to(norm)
        self.heads = Heads(spec.num_q_heads, spec.num_kv_heads, norms, 1e-6, num_between)
        width = self.heads.width * spec.head_dim
        self.qkv = torch.randn(num_rows, width, device=device).to(dtype)
        speeds = 1.0 / 100.0 ** (torch.arange(0, spec.head_dim, 2) / spec.head_dim)
        table = rope_table(speeds.to(device), 1.0, max(lengths) + 1)
        self.rotation = Rotation(table, self.lengths.long() - 1)

    def cache(self) -> KVCache:
        device = self.qkv.device
        cache = KVCache([self.spec], len(self.layer), PAGE, self.qkv.dtype, device)
        cache.layers = [self.layer.clone()]
        return in_float8(cache, [self.spec]) if self.float8 else cache

    def twin(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What is attended to, and the cache behind it."""
        cache = self.cache()
        plain = PlainAttention([self.spec], cache)
        starts = np.arange(len(self.lengths) + 1, dtype=np.int32)
        # Blocks are cleared whose first token is one of these: their other cells do not count.
        plain.begin(
            AttentionInputs(
                query_starts=torch.from_numpy(starts).to(self.qkv.device),
                query_starts_np=starts,
                seq_lens=self.lengths,
                block_tables=self.tables,
                slots=self.slots,
                seq_lens_np=self.lengths_np,
                max_query_len=1,
            )
        )
        return plain.attend_product(0, self.qkv, self.heads, self.rotation), cache.layers[0]

    def kernel(self, scratch: DecodeScratch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of the kernel."""
        cache = self.cache()
        layer = cache.layers[0]
        shape = (len(self.qkv), self.spec.num_q_heads, self.spec.head_dim)
        out = torch.full(shape, float("nan"), dtype=self.qkv.dtype, device=self.qkv.device)
        paged_decode_product(
            self.spec,
            Product(
                self.qkv,
                self.heads.norm,
                self.rotation.table,
                self.heads.eps,
                self.heads.num_between,
            ),
            self.rotation.positions,
            self.slots,
            layer,
            self.tables,
            self.lengths,
            out,
            scratch,
            cache.layer_scales(0),
        )
        return out, layer


def on_device(spec: AttentionSpec, device: str) -> AttentionSpec:
    slopes, sinks = spec.alibi_slopes, spec.sinks
    return replace(
        spec,
        alibi_slopes=None if slopes is None else slopes.to(device),
        sinks=None if sinks is None else sinks.to(device),
    )


def newest_cells(case: Case, layer: torch.Tensor) -> torch.Tensor:
    return layer[case.slots // PAGE, :, case.slots % PAGE]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("norm", "between"), [(None, 0), (torch.float32, 0), (None, 2)])
@pytest.mark.parametrize("lengths", [[1], [300], [64, 1, 65, 17, 200, 66], [129] * 9])
def test_kernel_equals_the_three_steps(
    lengths: list[int], norm: torch.dtype | None, between: int, spec: AttentionSpec, device: str
) -> None:
    own = on_device(spec, device)
    case = Case(own, lengths, device, torch.float32, norm, num_between=between)
    scratch = DecodeScratch([case.spec], len(lengths), case.qkv.device)
    scratch.sums.fill_(float("nan"))
    scratch.stats.fill_(float("nan"))
    wanted, twin_layer = case.twin()
    for _ in range(2):  # the second finds what the first left in the scratch
        found, layer = case.kernel(scratch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert not scratch.arrivals.any()
        torch.testing.assert_close(
            newest_cells(case, layer), newest_cells(case, twin_layer), rtol=1e-5, atol=1e-5
        )
        layer[case.slots // PAGE, :, case.slots % PAGE] = newest_cells(case, case.layer)
        torch.testing.assert_close(layer, case.layer, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["none", "rounded twice", "rounded once"])
def test_half_precision_is_rounded_as_the_steps_round(
    norm: str, dtype: torch.dtype, device: str
) -> None:
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16")
    own = {"none": None, "rounded twice": dtype, "rounded once": torch.float32}[norm]
    case = Case(SPEC, [300, 64, 7], device, dtype, own)
    wanted, _ = case.twin()
    found, _ = case.kernel(DecodeScratch([case.spec], 3, case.qkv.device))
    # A query or key rounded the other way, by eps of it, moves scores up to some 8 by 8 eps and as
    # much of values up to 4; weights and outputs are rounded by eps again.
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2 * eps, atol=16 * eps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lengths", [[1], [64, 1, 65, 17, 200, 66]])
def test_a_cache_in_float8_is_attended_to_as_it_is_stored(
    lengths: list[int], spec: AttentionSpec, dtype: torch.dtype, device: str
) -> None:
    case = Case(on_device(spec, device), lengths, device, dtype, dtype, float8=True)
    wanted, twin_layer = case.twin()
    found, layer = case.kernel(DecodeScratch([case.spec], len(lengths), case.qkv.device))
    cells, twin_cells = newest_cells(case, layer.float()), newest_cells(case, twin_layer.float())
    # A key that float16 rounds the other way may go to the neighbour, one part in eight away.
    is_half, eps = dtype == torch.float16, torch.finfo(dtype).eps
    torch.testing.assert_close(cells, twin_cells, rtol=1 / 8 if is_half else 0.0, atol=0)
    alike = (cells == twin_cells).flatten(1).all(1)
    atol = 16 * eps if is_half else 1e-5
    torch.testing.assert_close(
        found[alike].float(), wanted[alike].float(), rtol=1e-4 + 2 * eps, atol=atol
    )
    rest = layer.view(torch.uint8).clone()
    kept = case.cache().layers[0].view(torch.uint8)
    rest[case.slots // PAGE, :, case.slots % PAGE] = kept[case.slots // PAGE, :, case.slots % PAGE]
    torch.testing.assert_close(rest, kept, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_token_beyond_its_rows_limit_goes_where_it_is_told(device: str) -> None:
    """Drafts after a row's end have slots of the null block, and a length that lacks them."""
    case = Case(SPEC, [40, 33], device, torch.float32, torch.float32)
    case.slots[1] = 5
    _, layer = case.kernel(DecodeScratch([case.spec], 2, case.qkv.device))
    assert (layer[0, :, 5] != case.layer[0, :, 5]).all()
    own = int(case.tables[1, 2])
    torch.testing.assert_close(layer[own], case.layer[own], rtol=0, atol=0)
