"""Splits a step's rows into groups that one batched attention serves.

Rows of a group bring equally many query tokens, so a decode step is one group and a prefill chunk
is a group of its own. Rows far apart in length are kept apart too: a gather is as long as the
longest row of its group.

Letters in shapes: n rows, q query tokens a row, b blocks gathered a row, L = b * block_size keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.dense import Visible
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.memory.blocks import NULL_BLOCK
from sampling.device.mirror import to_device

SHORT_TOKENS = 128
"""Length up to which rows share a group; above, each factor of four has a group of its own."""

Indices = slice | torch.Tensor


@dataclass(frozen=True)
class Group:
    """n rows of q query tokens each.

    Attributes:
        tokens: indices of their tokens in the step, row after row.
        seq_lens: int32 [n]. block_tables: int32 [n, max_blocks]. Both as in AttentionInputs.
        max_seq_len: upper bound of seq_lens.
    """

    num_rows: int
    num_queries: int
    tokens: Indices
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    max_seq_len: int


@dataclass(frozen=True)
class GroupKeys:
    """The keys that a group reads in layers of one `Sight`.

    Attributes:
        pages: int32 [2 * n * b]; rows of a cache layer viewed as [num_blocks * 2, ...]: where the
            keys of all rows lie, then where their values do.
    """

    pages: torch.Tensor
    visible: Visible


def split_rows(inputs: AttentionInputs) -> Iterator[Group]:
    """Split a step into groups that together hold every row with query tokens."""
    query_lens = np.diff(inputs.query_starts_np).astype(np.int64)
    bounds = inputs.seq_lens_np
    length_class = np.ceil(np.log2(np.maximum(bounds / SHORT_TOKENS, 1.0)) / 2).astype(np.int64)
    keys = query_lens * 64 + length_class
    for key in np.unique(keys[query_lens > 0]):
        rows = np.flatnonzero(keys == key)
        yield _group(inputs, rows, int(query_lens[rows[0]]), int(bounds[rows].max()))


def _group(
    inputs: AttentionInputs, rows: npt.NDArray[np.int64], num_queries: int, max_seq_len: int
) -> Group:
    first, num_rows = int(rows[0]), len(rows)
    start = int(inputs.query_starts_np[first])
    row_indices: Indices
    tokens: Indices
    if int(rows[-1]) - first + 1 == num_rows:
        row_indices = slice(first, first + num_rows)
        tokens = slice(start, start + num_rows * num_queries)
    else:
        starts = inputs.query_starts_np[rows].astype(np.int64)
        row_indices = to_device(rows, inputs.seq_lens.device)
        tokens = to_device(
            (starts[:, None] + np.arange(num_queries)).reshape(-1), inputs.seq_lens.device
        )
    return Group(
        num_rows=num_rows,
        num_queries=num_queries,
        tokens=tokens,
        seq_lens=inputs.seq_lens[row_indices],
        block_tables=inputs.block_tables[row_indices],
        max_seq_len=max_seq_len,
    )


class Sight(NamedTuple):
    """The keys that a layer's queries see, as in `AttentionSpec`."""

    window: int | None
    is_causal: bool

    @classmethod
    def of(cls, spec: AttentionSpec) -> Sight:
        """Those of a layer."""
        return cls(spec.sliding_window, spec.is_causal)


def group_keys(
    group: Group, block_size: int, sight: Sight, dtype: torch.dtype, with_distance: bool
) -> GroupKeys:
    """Find the keys that the group's rows read."""
    window = sight.window
    device = group.seq_lens.device
    width = group.block_tables.shape[1]
    num_blocks = min(width, -(-group.max_seq_len // block_size))
    if window is not None:
        # The keys the row's queries see together span so many blocks at the worst alignment.
        num_blocks = min(num_blocks, (window + group.num_queries - 3) // block_size + 2)
    blocks = torch.arange(num_blocks, dtype=torch.int32, device=device)  # [b] or [n, b]
    key_range = torch.arange(num_blocks * block_size, dtype=torch.int32, device=device)
    if window is None:
        pages = group.block_tables[:, :num_blocks]
        key_positions = key_range.expand(group.num_rows, -1)  # [n, L]
    else:
        lowest_seen = group.seq_lens - (group.num_queries + window - 1)
        first_blocks = lowest_seen.clamp(min=0).div(block_size, rounding_mode="floor")
        blocks = first_blocks[:, None] + blocks
        pages = group.block_tables.gather(1, blocks.clamp(max=width - 1).long())
        key_positions = (first_blocks * block_size)[:, None] + key_range
    # Blocks past a row's length are masked; they may be granted already and never written.
    is_past = blocks * block_size >= group.seq_lens[:, None]
    pages = pages.masked_fill(is_past, NULL_BLOCK).reshape(-1) * 2
    return GroupKeys(
        pages=torch.cat([pages, pages + 1]),
        visible=_visible(group, key_positions, sight, dtype, with_distance),
    )


def _visible(
    group: Group,
    key_positions: torch.Tensor,
    sight: Sight,
    dtype: torch.dtype,
    with_distance: bool,
) -> Visible:
    query_range = torch.arange(
        -group.num_queries, 0, dtype=torch.int32, device=key_positions.device
    )
    query_positions = (group.seq_lens[:, None] + query_range).clamp(min=0)  # [n, q]
    distance = key_positions[:, None, :] - query_positions[:, :, None]  # [n, q, L]
    if sight.is_causal:
        hidden = distance > 0
    else:
        hidden = (key_positions >= group.seq_lens[:, None])[:, None, :].expand_as(distance)
    if sight.window is not None:
        hidden = hidden | (distance <= -sight.window)
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    bias.masked_fill_(hidden, float("-inf"))
    return Visible(bias[:, None], distance[:, None].float() if with_distance else None)
