from __future__ import annotations

import pytest
import torch

from engine.contracts.heads import Heads, Rotation
from engine.kernels.rope import rope, rope_and_store_torch, rope_and_store_triton, rope_table
from engine.memory.pages import FP8_CACHE, Cells
from tests.engine.kernels.where import DEVICES

BLOCK_SIZE, NUM_BLOCKS = 4, 3


def inv_freq_of(head_dim: int) -> torch.Tensor:
    return 1.0 / 10000.0 ** (torch.arange(0, head_dim, 2) / head_dim)


def cells_of(slots: list[int], num_kv: int, head_dim: int, like: torch.Tensor) -> Cells:
    tensor = like.new_zeros((NUM_BLOCKS * 2 * BLOCK_SIZE, num_kv, head_dim))
    rows = torch.tensor(slots, device=like.device)
    key_rows = rows + rows // BLOCK_SIZE * BLOCK_SIZE
    return Cells(tensor, key_rows, BLOCK_SIZE)


@pytest.mark.parametrize("head_dim", [2, 6, 64])
def test_rope_turns_pairs_as_complex_numbers(head_dim: int) -> None:
    positions = torch.tensor([0, 1, 17, 99])
    x, inv_freq = torch.randn(4, 3, head_dim), inv_freq_of(head_dim)
    out = rope(x, Rotation(rope_table(inv_freq, 1.5, 100), positions))
    low, high = x.double().chunk(2, dim=-1)
    angles = positions[:, None, None].double() * inv_freq.double()
    rotated = 1.5 * torch.complex(low, high) * torch.polar(torch.ones_like(angles), angles)
    wanted = torch.cat([rotated.real, rotated.imag], dim=-1)
    # The angle, up to 99, is rounded to float32 before its cosine is taken.
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=99 * 4 * 1.2e-7 + 1e-6)


@pytest.mark.parametrize("has_norm", [False, True])
def test_keys_and_values_land_in_their_cells(has_norm: bool) -> None:
    torch.manual_seed(0)
    num_q, num_kv, head_dim, slots = 4, 2, 8, [9, 0, 6]
    qkv = torch.randn(3, (num_q + 2 * num_kv) * head_dim)
    norm = torch.randn(num_q + num_kv, head_dim) if has_norm else None
    rotation = Rotation(rope_table(inv_freq_of(head_dim), 1.0, 50), torch.tensor([3, 40, 0]))
    cells = cells_of(slots, num_kv, head_dim, qkv)
    q = rope_and_store_torch(qkv, Heads(num_q, num_kv, norm, 1e-6), rotation, cells)

    heads = qkv.view(3, -1, head_dim)
    rotated = heads[:, : num_q + num_kv]
    if norm is not None:
        rotated = rotated / (rotated.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm
    rotated = rope(rotated, rotation)
    torch.testing.assert_close(q, rotated[:, :num_q])
    cache = cells.tensor.view(NUM_BLOCKS, 2, BLOCK_SIZE, num_kv, head_dim)
    for token, slot in enumerate(slots):
        page = cache[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE]
        torch.testing.assert_close(page[0], rotated[token, num_q:])
        torch.testing.assert_close(page[1], heads[token, num_q + num_kv :])
    assert int(cache.flatten(3).any(-1).sum()) == 2 * len(slots)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm_kind", ["none", "rounded twice", "rounded once"])
@pytest.mark.parametrize("num_between", [0, 2])
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), [(4, 2, 8), (3, 1, 6)])
def test_kernel(
    num_q: int,
    num_kv: int,
    head_dim: int,
    num_between: int,
    norm_kind: str,
    dtype: torch.dtype,
    device: str,
) -> None:
    torch.manual_seed(0)
    weights = torch.randn(num_q + num_kv, head_dim, device=device)
    norm = {"none": None, "rounded twice": weights.to(dtype), "rounded once": weights}[norm_kind]
    heads = Heads(num_q, num_kv, norm, 1e-6, num_between)
    qkv = torch.randn(3, heads.width * head_dim, device=device).to(dtype)
    table = rope_table(inv_freq_of(head_dim).to(device), 1.0, 50)
    rotation = Rotation(table, torch.tensor([3, 40, 0], device=device))
    results = []
    for run in (rope_and_store_torch, rope_and_store_triton):
        cells = cells_of([9, 0, 6], num_kv, head_dim, qkv)
        results.append((run(qkv, heads, rotation, cells), cells.tensor))
    # A norm rounded the other way moves a pair by a unit in the last place.
    for twin, kernel in zip(*results, strict=True):
        torch.testing.assert_close(kernel, twin, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_what_is_between_queries_and_keys_is_left_alone() -> None:
    torch.manual_seed(0)
    heads = Heads(4, 2, None, 1e-6, num_between=3)
    qkv = torch.randn(3, heads.width, 8)
    alone = torch.cat([qkv[:, :4], qkv[:, 7:]], dim=1).flatten(1)
    rotation = Rotation(rope_table(inv_freq_of(8), 1.0, 50), torch.tensor([3, 40, 0]))
    results = []
    for product, own in ((qkv.flatten(1), heads), (alone, heads._replace(num_between=0))):
        cells = cells_of([9, 0, 6], 2, 8, qkv)
        results.append((rope_and_store_torch(product, own, rotation, cells), cells.tensor))
    assert all(map(torch.equal, *results))


# Beyond the largest number, at it, between two numbers, at ties of normal and of subnormal ones,
# at a carry into the next power of two, and what is no number.
EDGES = [1e4, 448.0, 447.0, 17.0, 19.0, -1.9375, 0.0009765625, 0.0029296875, -0.0, torch.nan]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_are_rounded_to_fp8(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    num_kv, head_dim = 2, 16
    qkv = torch.randn(3, 3 * num_kv * head_dim, device=device).to(dtype) * 8
    # Triton's interpreter makes 384 of a NaN.
    kept = EDGES if device == "cuda" else EDGES[:-1]
    edges = torch.tensor(kept, device=device).to(dtype)
    qkv[1, -len(edges) :] = edges  # of the last value
    table = rope_table(inv_freq_of(head_dim).to(device), 1.0, 50)
    rotation = Rotation(table, torch.tensor([3, 40, 0], device=device))
    scales = torch.tensor([[0.5, 0.125], [2.0, 1.0]], device=device)
    stored = []
    for run in (rope_and_store_torch, rope_and_store_triton):
        cells = cells_of([9, 0, 6], num_kv, head_dim, qkv)
        cells = cells._replace(tensor=cells.tensor.to(FP8_CACHE), scales=scales)
        run(qkv, Heads(num_kv, num_kv, None, 1e-6), rotation, cells)
        stored.append(cells.tensor.float())
    twin, kernel = stored
    # A rotation rounded the other way may move a key across a tie of float8, to its neighbour.
    torch.testing.assert_close(kernel, twin, rtol=0.125, atol=2.0**-9, equal_nan=True)
    assert (kernel == twin).float().mean() > 0.98
    value = kernel.view(NUM_BLOCKS, 2, BLOCK_SIZE, num_kv, head_dim)[0, 1, 0, 1]
    wanted = edges.float().clamp(-448, 448).to(FP8_CACHE).float()
    torch.testing.assert_close(value[-len(edges) :], wanted, rtol=0, atol=0, equal_nan=True)
