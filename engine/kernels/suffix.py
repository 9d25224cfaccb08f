# mypy: allow-untyped-defs, allow-incomplete-defs
"""Finds suffix drafts on the device; `engine.speculation.suffix` has the definition and torch twin.

Three kernels: each earlier place's match (a program a row and block of places), the places that
match best (a program a row), and the continuations these places vote for (a program a row).
"""

from __future__ import annotations

import torch

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton

BLOCK = 1024
"""Places a program compares."""
PLACES = 64
"""The most places that vote; a power of two."""
MAX_DEPTH = 32
"""The longest match; a power of two."""

_PLACES, _LEVELS = constexpr(PLACES), constexpr(MAX_DEPTH)


@jit
def _match_kernel(
    history,
    rows,
    lengths,
    recent,
    readers,
    matched,
    counts,
    width,
    recent_size,
    num_own,
    num_blocks,
    depth,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Measure the match at each place of a block, and count those of each length or longer."""
    i, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, length = tl.load(rows + i).to(tl.int64), tl.load(lengths + i)
    own = history + row * width
    text, places = own, block * BLOCK + tl.arange(0, BLOCK)
    end = (length - 1).to(tl.int64)
    if block >= num_own:
        places = (block - num_own) * BLOCK + tl.arange(0, BLOCK)
        text, end = recent, recent_size * (tl.load(readers + row) > 0).to(tl.int64)
    going_on, n = places < end, tl.full((), 0, tl.int32)
    match = tl.zeros((BLOCK,), tl.int32)
    longest = tl.minimum(length, depth)
    while (n < longest) & (tl.max(going_on.to(tl.int32), 0) > 0):
        newest = tl.load(own + length - 1 - n)
        earlier = tl.load(text + places - n, mask=going_on & (places >= n), other=-1)
        going_on = going_on & (places >= n) & (earlier == newest)
        match += going_on.to(tl.int32)
        n += 1
    tl.store(matched + (i * num_blocks + block) * BLOCK + tl.arange(0, BLOCK), match.to(tl.uint8))
    level = tl.arange(0, _LEVELS)
    longer = tl.zeros((_LEVELS,), tl.int32)
    if tl.max(match, 0) > 0:
        longer = tl.sum((match[:, None] > level[None, :]).to(tl.int32), 0)
    tl.store(counts + (i * num_blocks + block) * _LEVELS + level, longer)


@jit
def _select_kernel(
    matched,
    counts,
    places,
    matches,
    num_own,
    num_blocks,
    padded_blocks: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Note a row's `PLACES` longest matches, of equally long ones the latest, the latest first."""
    i = tl.program_id(0).to(tl.int64)
    level, lane = tl.arange(0, _LEVELS), tl.arange(0, BLOCK)
    block = tl.arange(0, padded_blocks)
    at = counts + (i * num_blocks + block[:, None]) * _LEVELS + level[None, :]
    total = tl.sum(tl.load(at, mask=block[:, None] < num_blocks, other=0), 0)
    # Longer matches than `cut` all vote, and the latest of that length as far as there is room.
    cut = tl.sum((total >= _PLACES).to(tl.int32), 0)
    room = -tl.sum(tl.where(level == cut, total, 0), 0) + _PLACES
    taken, taken_at_cut = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for j in range(num_blocks):
        b = num_blocks + num_own - 1 - j  # recent outputs come after the row's own text
        if j < num_own:
            b = num_own - 1 - j
        if tl.load(counts + (i * num_blocks + b) * _LEVELS + tl.maximum(cut - 1, 0)) > 0:
            place = b * BLOCK + BLOCK - 1 - lane
            match = tl.load(matched + i * num_blocks * BLOCK + place).to(tl.int32)
            is_longer, is_at_cut = match > cut, (match == cut) & (match > 0)
            order = taken_at_cut + tl.cumsum(is_at_cut.to(tl.int32), 0)
            votes = is_longer | (is_at_cut & (order <= room))
            slot = taken + tl.cumsum(votes.to(tl.int32), 0) - 1
            tl.store(places + i * _PLACES + slot, place, mask=votes)
            tl.store(matches + i * _PLACES + slot, match, mask=votes)
            taken += tl.sum(votes.to(tl.int32), 0)
            taken_at_cut += tl.sum(is_at_cut.to(tl.int32), 0)
    slot = tl.arange(0, _PLACES)
    tl.store(matches + i * _PLACES + slot, 0, mask=slot >= taken)
    tl.store(places + i * _PLACES + slot, 0, mask=slot >= taken)


@jit
def _walk_kernel(
    history,
    rows,
    lengths,
    recent,
    places,
    matches,
    drafts,
    width,
    recent_size,
    first_recent,
    num_tokens,
    depth,
    factor,
    least,
    DRAFTS: tl.constexpr,  # noqa: N803
):
    """Follow, for each length of match, the token that most places vote for."""
    i = tl.program_id(0).to(tl.int64)
    text = history + tl.load(rows + i).to(tl.int64) * width
    length = tl.load(lengths + i)
    slot, level, column = tl.arange(0, _PLACES), tl.arange(0, _LEVELS), tl.arange(0, DRAFTS)
    place, match = tl.load(places + i * _PLACES + slot), tl.load(matches + i * _PLACES + slot)
    is_recent, first = place >= first_recent, place + 1
    goes_on = match > 0
    voters = (match[None, :] > level[:, None]) & (level[:, None] < depth)
    limit = tl.minimum(num_tokens, tl.floor((level + 1).to(tl.float32) * factor).to(tl.int32))
    probability, score = tl.full((_LEVELS,), 1.0, tl.float32), tl.zeros((_LEVELS,), tl.float32)
    paths = tl.full((_LEVELS, DRAFTS), -1, tl.int32)
    for j in range(num_tokens):
        own = text + first + j % tl.maximum(length - first, 1)
        other = recent + (first - first_recent + j) % recent_size
        token = tl.load(tl.where(is_recent, other, own), mask=goes_on, other=-1)
        goes_on = goes_on & (token >= 0)
        agrees = (token[:, None] == token[None, :]) & goes_on[None, :]
        votes = tl.dot(voters.to(tl.float16), agrees.to(tl.float16)).to(tl.int32)
        votes = tl.where(voters & goes_on[None, :], votes, 0)
        num_votes = tl.max(votes, 1)
        is_best = (votes == num_votes[:, None]) & (votes > 0)
        winner = tl.min(tl.where(is_best, slot[None, :], _PLACES), 1)
        num_voters = tl.maximum(tl.sum(voters.to(tl.int32), 1), 1)
        share = tl.div_rn(num_votes.to(tl.float32), num_voters.to(tl.float32))
        probability = probability * share
        stands = (num_votes > 0) & (probability >= least) & (j < limit)
        chosen = tl.sum(tl.where(slot[None, :] == winner[:, None], token[None, :], 0), 1)
        score += tl.where(stands, probability, 0.0)
        is_now = (column[None, :] == j) & stands[:, None]
        paths = tl.where(is_now, chosen[:, None], paths)
        voters = voters & stands[:, None] & (token[None, :] == chosen[:, None])
    top = tl.max(score, 0)
    longest = tl.max(tl.where(score == top, level, -1), 0)
    path = tl.sum(tl.where(level[:, None] == longest, paths, 0), 0)
    tl.store(drafts + i * num_tokens + column, path, mask=column < num_tokens)


def suffix_drafts_triton(
    history: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    num_tokens: int,
    depth: int,
    factor: float,
    least: float,
    recent: torch.Tensor | None = None,
    readers: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `suffix_drafts` of `engine.speculation.suffix` in kernels; history contiguous."""
    assert history.is_contiguous()
    device, num_rows, width = history.device, len(rows), history.shape[1]
    drafts = torch.empty((num_rows, num_tokens), dtype=torch.int32, device=device)
    if not num_rows:
        return drafts
    num_own = triton.cdiv(width, BLOCK)
    recent_size = 1 if recent is None else len(recent)
    num_blocks = num_own + (0 if recent is None else triton.cdiv(recent_size, BLOCK))
    texts = (history if recent is None else recent, rows if readers is None else readers)
    matched = torch.empty((num_rows, num_blocks * BLOCK), dtype=torch.uint8, device=device)
    counts = torch.empty((num_rows, num_blocks, MAX_DEPTH), dtype=torch.int32, device=device)
    places = torch.empty((num_rows, PLACES), dtype=torch.int32, device=device)
    matches = torch.empty_like(places)
    _match_kernel[(num_rows, num_blocks)](
        history, rows, lengths, *texts, matched, counts, width, recent_size, num_own, num_blocks,
        depth, BLOCK=BLOCK,
    )  # fmt: skip
    _select_kernel[(num_rows,)](
        matched, counts, places, matches, num_own, num_blocks,
        padded_blocks=padded_lanes(num_blocks), BLOCK=BLOCK,
    )  # fmt: skip
    _walk_kernel[(num_rows,)](
        history, rows, lengths, texts[0], places, matches, drafts, width, recent_size,
        num_own * BLOCK, num_tokens, depth, factor, least,
        DRAFTS=triton.next_power_of_2(num_tokens), enable_fp_fusion=False,
    )  # fmt: skip
    return drafts
