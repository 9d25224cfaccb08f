# mypy: allow-untyped-defs, allow-incomplete-defs
"""Finds suffix drafts on the device; `engine.speculation.suffix` has the definition and torch twin.

Five kernels, of programs as short as can be: each earlier place's match (a program a row and block
of places), where each block's voters go (a program a row), the voters (a row and block), the path
of each length of match (a row and length), and the best of them.
"""

from __future__ import annotations

import torch

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton

BLOCK = 1024
"""Places a program compares."""
PLACES = 32
"""The most places that vote; a power of two."""
MAX_DEPTH = 32
"""The longest match; a power of two."""

CHUNK = 4
"""Tokens that a place compares before it asks whether any goes on."""

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
    CHUNK: tl.constexpr,  # noqa: N803
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
    inside = going_on
    longest = tl.minimum(length, depth)
    while (n < longest) & (tl.max(going_on.to(tl.int32), 0) > 0):
        for ahead in tl.static_range(CHUNK):  # loads that wait for no comparison
            before = n + ahead
            newest = tl.load(own + tl.maximum(length - 1 - before, 0))
            given = inside & (places >= before)
            earlier = tl.load(text + places - before, mask=given, other=-1)
            going_on = going_on & (earlier == newest)
            match += going_on.to(tl.int32)
        n += CHUNK
    match = tl.minimum(match, longest.to(tl.int32))
    tl.store(matched + (i * num_blocks + block) * BLOCK + tl.arange(0, BLOCK), match.to(tl.uint8))
    level = tl.arange(0, _LEVELS)
    longer = tl.zeros((_LEVELS,), tl.int32)
    if tl.max(match, 0) > 0:
        longer = tl.sum((match[:, None] > level[None, :]).to(tl.int32), 0)
    tl.store(counts + (i * num_blocks + block) * _LEVELS + level, longer)


@jit
def _cut_kernel(
    counts,
    cuts,
    firsts,
    matches,
    num_own,
    num_blocks,
    padded_blocks: tl.constexpr,
):
    """Find a row's shortest match that votes, and how many voters come before each block's.

    Longer matches than the cut all vote, and the latest of that length as far as there is room.
    """
    i = tl.program_id(0).to(tl.int64)
    level, order = tl.arange(0, _LEVELS), tl.arange(0, padded_blocks)
    # The latest block of the row's own text is first; recent outputs come after that text.
    block = tl.where(order < num_own, num_own, num_blocks + num_own) - 1 - order
    given = order < num_blocks
    at = (i * num_blocks + block) * _LEVELS
    own = tl.load(counts + at[:, None] + level[None, :], mask=given[:, None], other=0)
    cut = tl.sum((tl.sum(own, 0) >= _PLACES).to(tl.int32), 0)
    longer = tl.sum(tl.where(level[None, :] == cut, own, 0), 1)
    alike = tl.sum(tl.where(level[None, :] == cut - 1, own, 0), 1) - longer
    alike = tl.where(cut > 0, alike, 0)
    room = -tl.sum(longer, 0) + _PLACES
    before = tl.cumsum(alike, 0) - alike
    alike = tl.minimum(alike, tl.maximum(room - before, 0))
    voters = longer + alike
    first = tl.cumsum(voters, 0) - voters
    out = firsts + (i * num_blocks + block) * 2
    tl.store(out, first, mask=given)
    tl.store(out + 1, tl.where(voters > 0, alike, -1), mask=given)
    tl.store(cuts + i, cut)
    tl.store(matches + i * _PLACES + tl.arange(0, _PLACES), tl.zeros((_PLACES,), tl.int32))


@jit
def _select_kernel(
    matched,
    cuts,
    firsts,
    places,
    matches,
    num_blocks,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Note a block's voters, the latest first."""
    i, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = firsts + (i * num_blocks + block) * 2
    num_alike = tl.load(at + 1)
    if num_alike >= 0:
        cut = tl.load(cuts + i)
        place = block * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK)
        match = tl.load(matched + i * num_blocks * BLOCK + place).to(tl.int32)
        is_alike = (match == cut) & (match > 0)
        order = tl.cumsum(is_alike.to(tl.int32), 0)
        votes = (match > cut) | (is_alike & (order <= num_alike))
        slot = i * _PLACES + tl.load(at) + tl.cumsum(votes.to(tl.int32), 0) - 1
        tl.store(places + slot, place, mask=votes)
        tl.store(matches + slot, match, mask=votes)


@jit
def _walk_kernel(
    history,
    rows,
    lengths,
    recent,
    places,
    matches,
    paths,
    scores,
    width,
    recent_size,
    first_recent,
    num_tokens,
    depth,
    factor,
    least,
):
    """Follow the token that most places vote for, among those of one length of match or longer."""
    i, shortest = tl.program_id(0).to(tl.int64), tl.program_id(1) + 1
    slot = tl.arange(0, _PLACES)
    match = tl.load(matches + i * _PLACES + slot)
    score, number = tl.full((), 0.0, tl.float32), tl.full((), 0, tl.int32)
    # Where all match further, a longer match's path is no shorter.
    if tl.max((match == shortest).to(tl.int32), 0) > 0:
        text = history + tl.load(rows + i).to(tl.int64) * width
        length = tl.load(lengths + i)
        first = tl.load(places + i * _PLACES + slot, mask=match > 0, other=0) + 1
        is_recent = first > first_recent
        limit = tl.floor(shortest.to(tl.float32) * factor).to(tl.int32)
        limit = tl.minimum(limit, num_tokens)
        voters, probability = match >= shortest, tl.full((), 1.0, tl.float32)
        goes_on, path = match > 0, paths + (i * depth + shortest - 1) * num_tokens
        while number < limit:
            own = text + first + number % tl.maximum(length - first, 1)
            other = recent + (first - first_recent + number) % recent_size
            token = tl.load(tl.where(is_recent, other, own), mask=match > 0, other=-1)
            goes_on = goes_on & (token >= 0)
            asked = voters & goes_on
            agrees = (token[:, None] == token[None, :]) & asked[:, None] & asked[None, :]
            votes = tl.sum(agrees.to(tl.int32), 0)
            # The most votes, of equally many the first slot's, in one number with the token.
            rank = (votes * _PLACES + (_PLACES - 1) - slot).to(tl.int64)
            best = tl.max(tl.where(asked, rank << 32 | token.to(tl.int64), 0), 0)
            num_votes = ((best >> 32) // _PLACES).to(tl.float32)
            num_voters = tl.sum(voters.to(tl.int32), 0).to(tl.float32)
            probability = probability * tl.div_rn(num_votes, num_voters)
            if (num_votes > 0.0) & (probability >= least):
                chosen = (best & 0xFFFFFFFF).to(tl.int32)
                tl.store(path + number, chosen)
                score += probability
                voters = asked & (token == chosen)
                number += 1
            else:
                limit = number
    tl.store(scores + (i * depth + shortest - 1) * 2, score)
    tl.store(scores + (i * depth + shortest - 1) * 2 + 1, number.to(tl.float32))


@jit
def _best_kernel(paths, scores, drafts, num_tokens, depth, DRAFTS: tl.constexpr):  # noqa: N803
    """Take the path with the highest score, of equal ones the longest match's."""
    i = tl.program_id(0).to(tl.int64)
    level, column = tl.arange(0, _LEVELS), tl.arange(0, DRAFTS)
    score = tl.load(scores + (i * depth + level) * 2, mask=level < depth, other=-1.0)
    best = tl.max(tl.where(score == tl.max(score, 0), level, 0), 0)
    number = tl.load(scores + (i * depth + best) * 2 + 1)
    path = paths + (i * depth + best) * num_tokens + column
    token = tl.load(path, mask=column < tl.minimum(number.to(tl.int32), num_tokens), other=-1)
    tl.store(drafts + i * num_tokens + column, token, mask=column < num_tokens)


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

    def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty((num_rows, *shape), dtype=dtype, device=device)

    matched, counts = buffer(num_blocks * BLOCK, dtype=torch.uint8), buffer(num_blocks, MAX_DEPTH)
    cuts, firsts, places, matches = buffer(), buffer(num_blocks, 2), buffer(PLACES), buffer(PLACES)
    paths, scores = buffer(depth, num_tokens), buffer(depth, 2, dtype=torch.float32)
    _match_kernel[(num_rows, num_blocks)](
        history, rows, lengths, *texts, matched, counts, width, recent_size, num_own, num_blocks,
        depth, BLOCK=BLOCK, CHUNK=CHUNK,
    )  # fmt: skip
    _cut_kernel[(num_rows,)](
        counts, cuts, firsts, matches, num_own, num_blocks,
        padded_blocks=padded_lanes(num_blocks),
    )  # fmt: skip
    _select_kernel[(num_rows, num_blocks)](
        matched, cuts, firsts, places, matches, num_blocks, BLOCK=BLOCK
    )
    _walk_kernel[(num_rows, depth)](
        history, rows, lengths, texts[0], places, matches, paths, scores, width, recent_size,
        num_own * BLOCK, num_tokens, depth, factor, least, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    drafted = triton.next_power_of_2(num_tokens)
    _best_kernel[(num_rows,)](paths, scores, drafts, num_tokens, depth, DRAFTS=drafted, num_warps=1)
    return drafts
