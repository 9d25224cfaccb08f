"""The torch twin of invariant attention: one order of sums for each query, on a CPU.

Products have one shape a query, whatever is beside it: [G, D] queries of a key head by [D, N]
keys of a block. Letters in shapes: T query tokens, A of them that see a block, H key heads, G query
heads a key head, D head_dim, N keys a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.invariant.attention import block_of
from engine.kernels.invariant.functions import elementwise
from engine.kernels.invariant.shares import LEVELS
from engine.memory.pages import FP8_CACHE

TOKENS = 256
"""Query tokens computed at once, which bounds the keys gathered for them."""


class _Softmax(NamedTuple):
    """An online softmax: [T, H, G, 1] maxima and sums of weights, [T, H, G, D] weighted values."""

    top: torch.Tensor
    total: torch.Tensor
    acc: torch.Tensor

    def at(self, tokens: torch.Tensor) -> _Softmax:
        """That of some tokens."""
        return _Softmax(*(tensor[tokens] for tensor in self))

    def put(self, tokens: torch.Tensor, new: _Softmax) -> None:
        """Replace that of some tokens."""
        for tensor, values in zip(self, new, strict=True):
            tensor[tokens] = values

    def merged(self, share: _Softmax) -> _Softmax:
        """The sums over these keys and those of the share after them."""
        higher = torch.maximum(self.top, share.top)
        mine, theirs = _rescale(self.top, higher), _rescale(share.top, higher)
        return _Softmax(
            higher,
            self.total * mine + share.total * theirs,
            self.acc * mine + share.acc * theirs,
        )


def invariant_attention_torch(
    spec: AttentionSpec,
    q: torch.Tensor,
    pages: torch.Tensor,
    tables: torch.Tensor,
    ends: torch.Tensor,
    longest: int,
    scales: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from every query token to the keys before position `ends` of its row.

    Args:
        q: [T, H * G, D].
        pages: one layer of a KVCache.
        tables: int32 [T, max_blocks], of each token's row.
        ends: int64 [T]. 0 attends to nothing: zeros.
        longest: upper bound of `ends`.
        scales: of the layer, as `KVCache.scales`.
        positions: int64 [T], of the tokens; None: one less than `ends`, as in causal layers.

    Returns:
        [T, H * G, D] in q's dtype.
    """
    if scales is not None:  # float8 cannot be gathered on a CPU
        pages = pages.view(torch.uint8)
    positions = ends - 1 if positions is None else positions
    cut = (torch.split(tensor, TOKENS) for tensor in (q, tables, ends, positions))
    parts = [
        _attend(spec, some, their_tables, their_ends, own, pages, longest, scales)
        for some, their_tables, their_ends, own in zip(*cut, strict=True)
    ]
    return torch.cat(parts)


def _attend(
    spec: AttentionSpec,
    q: torch.Tensor,
    tables: torch.Tensor,
    ends: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor,
    longest: int,
    scales: torch.Tensor | None,
) -> torch.Tensor:
    num_tokens, head_dim = len(q), spec.head_dim
    block = block_of(head_dim, q.dtype)
    grouped = q.view(num_tokens, spec.num_kv_heads, -1, head_dim)
    sums, share = _nothing(grouped), _nothing(grouped)
    firsts = torch.zeros_like(ends)
    if spec.sliding_window is not None:
        firsts = (positions + 1 - spec.sliding_window).clamp_(min=0)
    for at in range(0, longest, block):
        seeing = torch.nonzero((ends > at) & (firsts < at + block)).flatten()
        if len(seeing):
            keys = tables[seeing], ends[seeing], positions[seeing]
            extended = _see_block(spec, share.at(seeing), grouped[seeing], pages, *keys, at, scales)
            share.put(seeing, extended)
        if _ends_share(at + block):
            sums, share = sums.merged(share), _nothing(grouped)
    sums = sums.merged(share)
    total, acc = sums.total, sums.acc
    if spec.sinks is not None:
        sinks = spec.sinks.view(1, spec.num_kv_heads, -1, 1)
        higher = torch.maximum(sums.top, sinks)
        shrink = _rescale(sums.top, higher)
        total, acc = total * shrink + _rescale(sinks, higher), acc * shrink
    out = acc / total.masked_fill(total == 0.0, 1.0)
    return out.view(q.shape).to(q.dtype)


def _nothing(grouped: torch.Tensor) -> _Softmax:
    """Sums over no key, for queries [T, H, G, D]."""
    column = grouped.new_zeros((*grouped.shape[:-1], 1), dtype=torch.float32)
    acc = torch.zeros(grouped.shape, dtype=torch.float32)
    return _Softmax(column.fill_(-torch.inf), torch.zeros_like(column), acc)


def _see_block(
    spec: AttentionSpec,
    share: _Softmax,
    q: torch.Tensor,
    pages: torch.Tensor,
    tables: torch.Tensor,
    ends: torch.Tensor,
    own: torch.Tensor,
    at: int,
    scales: torch.Tensor | None,
) -> _Softmax:
    """Extend a share's sums of A tokens, at positions `own`, over the block of keys at `at`."""
    num_tokens, num_kv_heads, group, head_dim = q.shape
    page = pages.shape[2]
    positions = at + torch.arange(block_of(head_dim, q.dtype))  # [N]
    columns = (positions // page).clamp_(max=tables.shape[1] - 1)
    blocks, offsets = tables[:, columns].long(), (positions % page).expand(num_tokens, -1)
    there = positions < ends[:, None]  # [A, N]
    cells = pages[blocks, :, offsets]  # [A, N, 2, H, D]
    if scales is not None:
        cells = (cells.view(FP8_CACHE).float() * scales[..., None]).to(q.dtype)
    cells = cells.masked_fill(~there[:, :, None, None, None], 0.0)  # what was left there may be NaN
    keys, values = cells.permute(2, 0, 3, 1, 4).reshape(2, -1, len(positions), head_dim)
    queries = q.reshape(-1, group, head_dim)
    scores = torch.bmm(queries, keys.transpose(1, 2)).float() * spec.scale  # [A * H, G, N]
    scores = scores.view(num_tokens, num_kv_heads, group, -1)
    if spec.softcap is not None:
        scores = spec.softcap * elementwise(torch.tanh, scores / spec.softcap)
    distance = positions - own[:, None]  # [A, N]
    if spec.alibi_slopes is not None:
        slopes = spec.alibi_slopes.view(1, num_kv_heads, group, 1)
        scores = scores + slopes * distance[:, None, None].float()
    seen = there
    if spec.sliding_window is not None:
        seen = there & (distance > -spec.sliding_window)
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    higher = torch.maximum(share.top, scores.amax(-1, keepdim=True))
    weights = _rescale(scores, higher)
    shrink = _rescale(share.top, higher)
    weighted = torch.bmm(weights.to(q.dtype).view(-1, group, len(positions)), values).float()
    return _Softmax(
        higher,
        share.total * shrink + weights.sum(-1, keepdim=True),
        share.acc * shrink + weighted.view(q.shape),
    )


def _rescale(top: torch.Tensor, higher: torch.Tensor) -> torch.Tensor:
    """The factor from weights relative to `top` to weights relative to `higher`, 0 for -inf."""
    return elementwise(torch.exp, top - higher.masked_fill(higher == -torch.inf, 0.0))


def _ends_share(position: int) -> bool:
    """Whether a share ends before a position that is not 0."""
    length = next(length for end, length in LEVELS if position <= end)
    return position % length == 0
