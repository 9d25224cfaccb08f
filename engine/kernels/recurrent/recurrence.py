"""Linear recurrences with a matrix a head: the gated delta rule and Mamba 2's state space.

Of every head, a matrix S [V, K] in float32:

    S ← exp(decay) S
    u = beta (v - S k)   (delta rule)     or     u = beta v   (state space)
    S ← S + u kᵀ
    o = scale S q + skip v

Mamba 2 is the second: v is x, k is B, q is C, beta is dt, decay is dt A and skip is D. The delta
rule has queries and keys of unit length. Decays are logarithms, one a head or, for Kimi's delta
rule, one a channel of k; they and betas are `gates` of what a token brings. Whatever the inputs'
dtype, all of it is float32.

Prefilled rows are computed in chunks of `CHUNK` positions, on a grid of positions: cut there, a
row's numbers are the same bits. Rows that decode are computed token by token, and so is all where
a rule asks for it. A chunk unrolls the recurrence, with D[i, j] the sum of the decays after token j
up to i and S₀ the state before it:

    u[i] = beta[i] (v[i] - exp(D[i]) S₀ k[i] - Σ_{j < i} exp(D[i, j]) (k[i] · k[j]) u[j])
    o[i] = scale (exp(D[i]) S₀ q[i] + Σ_{j ≤ i} exp(D[i, j]) (q[i] · k[j]) u[j]) + skip v[i]

a triangular system of equations for u. D is summed by segment, not as a difference of sums, which
would lose the digits of small decays beside large ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.recurrent.gates import gates_torch
from engine.kernels.recurrent.matrices import (
    CHUNK,
    Drafted,
    HeadWeights,
    Matrices,
    Rule,
    TokenInputs,
)
from engine.kernels.recurrent.recurrence_chunked import recurrence_chunked
from engine.kernels.recurrent.recurrence_serial import recurrence_serial
from engine.kernels.recurrent.reference import NORM_EPS
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows, entered


class _Tokens(NamedTuple):
    """Inputs of tokens whose decays and betas are known, as `Drafted` has them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


def recurrence(
    inputs: TokenInputs,
    rule: Rule,
    weights: HeadWeights,
    memory: Matrices,
    rows: StateRows,
    extent: Extent,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the recurrence of a call's rows → [T, H, V] in v's dtype; enter it into `memory`.

    Args:
        out: is written where rows have tokens, zeros of rows without a slot; None makes one.
    """
    if not inputs.v.is_cuda:
        return recurrence_torch(inputs, rule, weights, memory, rows, extent, out)
    if rule.by_token or extent.num_certain is not None:
        return recurrence_serial(inputs, rule, weights, memory, rows, extent, out)
    return recurrence_chunked(inputs, rule, weights, memory, rows, extent, out)


def recurrence_torch(
    inputs: TokenInputs,
    rule: Rule,
    weights: HeadWeights,
    memory: Matrices,
    rows: StateRows,
    extent: Extent,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    out = torch.empty_like(inputs.v) if out is None else out
    decay, beta = gates_torch(inputs.a, inputs.b, rule, weights)
    gated = _Tokens(*inputs[:3], decay, beta)
    starts, ends = rows.starts.tolist(), entered(rows, extent).tolist()
    for row, slot in enumerate(rows.slots.tolist()):
        tokens = slice(starts[row], starts[row + 1])
        if slot == NULL_SLOT:
            out[tokens] = 0.0
            continue
        own = _Tokens(*(each[tokens] for each in gated))
        begin, source = int(rows.begins[row]), int(rows.sources[row])
        matrix = memory.matrix
        state = matrix[source].clone() if begin else torch.zeros_like(matrix[slot])
        snapshots = dict(
            zip(rows.snapshot_ends[row].tolist(), rows.snapshot_slots[row].tolist(), strict=True)
        )
        for position in range(begin - int(rows.replays[row]), begin):
            _, state = chunk_torch(_drafted(memory.drafted, source, position), rule, state)
            _store(matrix, state, snapshots.get(position + 1))
        position = begin
        while position < begin + len(own.v):
            end = min(_chunk_end(position, rule, extent), begin + len(own.v))
            span = slice(position - begin, end - begin)
            read, state = chunk_torch(_Tokens(*(each[span] for each in own)), rule, state)
            if weights.skip is not None:
                read += weights.skip[:, None] * own.v[span].float()
            out[tokens][span] = read.to(out.dtype)
            if end <= ends[row]:
                _store(matrix, state, slot)
                _store(matrix, state, snapshots.get(end))
            position = end
        _keep(memory.drafted, slot, own, begin, ends[row])
    return out


def _store(matrix: torch.Tensor, state: torch.Tensor, slot: int | None) -> None:
    if slot is not None and slot != NULL_SLOT:
        matrix[slot] = state


def _chunk_end(position: int, rule: Rule, extent: Extent) -> int:
    """Where the chunk that begins at a position ends: rows that decode have chunks of one token."""
    by_token = rule.by_token or extent.num_certain is not None
    return position + 1 if by_token else (position // CHUNK + 1) * CHUNK


def _drafted(drafted: Drafted, slot: int, position: int) -> _Tokens:
    """The inputs of a draft that was accepted, as one token's."""
    k, v, decay, beta = (each[slot, position % each.shape[1]][None] for each in drafted)
    return _Tokens(k, k, v, decay, beta)


def _keep(drafted: Drafted, slot: int, own: _Tokens, begin: int, end: int) -> None:
    """Keep the inputs of a row's tokens from position `end` on, which may be refused."""
    positions = torch.arange(end, begin + len(own.v))
    for ring, tokens in zip(drafted, own[1:], strict=True):
        ring[slot, positions % ring.shape[1]] = tokens[end - begin :]


def chunk_torch(
    tokens: _Tokens, rule: Rule, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the state [H, V, K] over n tokens; what they read, float32 [n, H, V], and the state."""
    num_tokens, heads = tokens.v.shape[:2]
    group = heads // tokens.k.shape[1]
    q, k = (
        (_unit(each.float()) if rule.delta else each.float()).repeat_interleave(group, dim=1)
        for each in tokens[:2]
    )
    v, beta = tokens.v.float(), tokens.beta[..., None]
    decay = tokens.decay if tokens.decay.dim() == 3 else tokens.decay[..., None]  # [n, H, K | 1]
    before = torch.ones(num_tokens, num_tokens).tril(-1)[:, :, None, None]
    decays = (decay[:, None] * before).cumsum(0).exp()  # [i, j, H, K | 1], of i >= j
    since_begin = decay.cumsum(0).exp()  # [n, H, K | 1]
    added = beta * v
    if rule.delta:
        added = added - beta * torch.einsum("ihk,hvk->ihv", k * since_begin, state)
        system = (beta[:, None, :, 0] * _products(k, k, decays)).permute(2, 0, 1)  # [H, i, j]
        added = torch.linalg.solve_triangular(
            system, added.transpose(0, 1), upper=False, unitriangular=True
        ).transpose(0, 1)
    read = torch.einsum("ihk,hvk->ihv", q * since_begin, state)
    read += torch.einsum("ijh,jhv->ihv", _products(q, k, decays), added)
    state = state * since_begin[-1][:, None]
    state = state + torch.einsum("jhv,jhk->hvk", added, k * decays[-1])
    return read * rule.scale, state


def _products(x: torch.Tensor, k: torch.Tensor, decays: torch.Tensor) -> torch.Tensor:
    """x[i] · k[j], decayed from j to i, 0 of j > i: [i, j, H]."""
    if decays.shape[-1] == 1:
        products = torch.einsum("ihk,jhk->ijh", x, k) * decays[..., 0]
    else:
        products = torch.einsum("ihk,ijhk->ijh", x, decays * k)
    return products.permute(2, 0, 1).tril().permute(1, 2, 0)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """x over its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)
