"""Textbook versions in float64 to test against: the noise, the filters by a full sort, the race.

Everything here is written for reading, not for speed, and shares no code with what it checks
but the constants of the noise contract (`sampling.noise`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, TILE, Purpose, stream

Floats = npt.NDArray[np.float64]


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Compute Philox4x32-10 of Salmon et al. 2011 on Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def uniform(seed: int, index: int, position: int, choice: int, stream_id: int) -> float:
    """The 64-bit uniform of the noise contract."""
    key = seed % 2**64
    words = philox((index >> 1, position, choice, stream_id), (key % 2**32, key >> 32))
    high, low = words[2 * (index & 1)], words[2 * (index & 1) + 1]
    # Python divides integers with one rounding, as high * 2^-32 + (low + 1/2) * 2^-64 has.
    return min((2 * (high << 32 | low) + 1) / 2**65, 1.0 - 2.0**-53)


def exponential(seed: int, index: int, position: int, choice: int, stream_id: int) -> float:
    """The exponential of the noise contract: -log1p(-u), rounded once by the C library."""
    return float(-np.log1p(-uniform(seed, index, position, choice, stream_id)))


class Draw(NamedTuple):
    """A token and how clearly it won."""

    token_id: int
    margin: float  # relative gap between the best two keys, the smaller of the two levels'


def penalize(
    logits: Floats,
    counts: npt.NDArray[np.int64],
    in_prompt: npt.NDArray[np.bool_],
    *,
    repetition: float,
    presence: float,
    frequency: float,
) -> Floats:
    """Apply the penalties by their definitions, on float64 [vocab_size]; `counts` of the output."""
    seen = in_prompt | (counts > 0)
    repeated = np.where(logits > 0, logits / repetition, logits * repetition)
    penalized: Floats = np.where(seen, repeated, logits) - frequency * counts
    return penalized - presence * (counts > 0)


def kept(
    logits: Floats, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> npt.NDArray[np.bool_]:
    """The tokens that min-p, then top-k, then top-p keep, by a full sort; bool [vocab_size]."""
    order = np.lexsort((np.arange(len(logits)), -logits))  # higher logit first, then lower id
    probabilities = _softmax(logits, temperature)[order]
    num_finite = int(np.isfinite(logits).sum())
    num = min(int((probabilities >= min_p * probabilities[0]).sum()), num_finite)
    num = min(num, top_k or num)
    if top_p < 1.0:
        mass = np.cumsum(probabilities[:num])
        num = int(np.searchsorted(mass, top_p * mass[-1])) + 1
    mask = np.zeros(len(logits), dtype=bool)
    mask[order[:num]] = True
    return mask


def allowed(words: npt.NDArray[np.int32], vocab_size: int) -> npt.NDArray[np.bool_]:
    """The tokens that a bitmap allows, a bit a token and low bit first; bool [vocab_size]."""
    bits = [int(words[token // 32]) >> token % 32 & 1 for token in range(vocab_size)]
    return np.array(bits, dtype=bool)


def kept_logprob(logits: Floats, left: npt.NDArray[np.bool_], *, temperature: float) -> float:
    """The log of the mass that the tokens `left` by masks and filters have of all tokens.

    Args:
        logits: float64 [vocab_size], after bias and penalties, without masks.
        left: bool [vocab_size].
        temperature: 0 counts as 1.
    """
    probabilities = _softmax(logits, temperature or 1.0)
    with np.errstate(divide="ignore"):
        return float(np.log(probabilities[left].sum()))


def race(
    logits: Floats, *, temperature: float, seed: int, position: int, choice: int, purpose: Purpose
) -> Draw:
    """The two-level race over softmax(logits / T), float64 [vocab_size]; -inf never wins."""
    num_tiles = -(-len(logits) // TILE)
    weights = _softmax(logits, temperature)
    masses = np.array([weights[t * TILE : (t + 1) * TILE].sum() for t in range(num_tiles)])
    level = (seed, position, choice, stream(purpose, LEVEL_TILE))
    tile, tile_margin = _win(range(num_tiles), masses, level)
    ids = range(tile * TILE, min((tile + 1) * TILE, len(logits)))
    inside = logits[ids.start : ids.stop]
    level = (seed, position, choice, stream(purpose, LEVEL_TOKEN))
    token_id, token_margin = _win(ids, np.exp((inside - inside.max()) / temperature), level)
    return Draw(token_id, min(tile_margin, token_margin))


def _win(indices: range, weights: Floats, level: tuple[int, int, int, int]) -> Draw:
    """The winner of one level's race: argmin E_i / w_i, the first among equals."""
    seed, position, choice, stream_id = level
    noise = np.array([exponential(seed, i, position, choice, stream_id) for i in indices])
    keys = np.full(len(weights), np.inf)
    np.divide(noise, weights, out=keys, where=weights > 0)
    best = int(keys.argmin())
    others = np.delete(keys, best)
    margin = float(others.min() / keys[best] - 1.0) if len(others) else np.inf
    return Draw(indices[best], margin)


def _softmax(logits: Floats, temperature: float) -> Floats:
    weights = np.exp((logits - logits.max()) / temperature)
    normalized: Floats = weights / weights.sum()
    return normalized


def two_level(
    weights: Floats, *, seed: int, position: int, choice: int, purpose: Purpose, depth: int = 0
) -> Draw:
    """The two-level race over any weights, float64 [vocab_size]; a weight of 0 never wins."""
    starts = range(0, len(weights), TILE)
    masses = np.array([weights[start : start + TILE].sum() for start in starts])
    level = (seed, position, choice, stream(purpose, LEVEL_TILE, depth))
    tile, tile_margin = _win(range(len(starts)), masses, level)
    ids = range(starts[tile], min(starts[tile] + TILE, len(weights)))
    level = (seed, position, choice, stream(purpose, LEVEL_TOKEN, depth))
    token_id, token_margin = _win(ids, weights[ids.start : ids.stop], level)
    return Draw(token_id, min(tile_margin, token_margin))


def accept(
    p: Floats, q: Floats, x: int, *, seed: int, position: int, choice: int, depth: int
) -> bool:
    """Whether draft x is accepted: u < p(x) / q(x)."""
    u = uniform(seed, 0, position, choice, stream(Purpose.ACCEPT, depth=depth))
    return bool(u < p[x] / q[x])


def recovered(
    p: Floats, q: Floats | None, x: int, *, seed: int, position: int, choice: int
) -> Draw:
    """The token in place of the refused x: from max(p - q, 0), or from p without x (q is None)."""
    one_hot = np.arange(len(p)) == x
    weights = np.where(one_hot, 0.0, p) if q is None else np.maximum(p - q, 0.0)
    return two_level(weights, seed=seed, position=position, choice=choice, purpose=Purpose.RESIDUAL)


class Verified(NamedTuple):
    """The tokens that verification leaves of a step, and how clearly they were decided."""

    token_ids: list[int]
    margin: float  # the smallest relative gap of any decision


def verify_by_draws(
    p: Sequence[Floats], draft_ids: Sequence[int], *, seed: int, position: int, choice: int
) -> Verified:
    """Verify one row's drafts by the tokens that are drawn without any: those are its tokens.

    Args:
        p, draft_ids, seed, position, choice: as for `verify`.
    """
    tokens: list[int] = []
    margin = np.inf
    for depth, x in enumerate([*draft_ids, None]):
        at = {"seed": seed, "position": position + depth, "choice": choice}
        drawn = two_level(p[depth], **at, purpose=Purpose.TARGET)
        tokens.append(drawn.token_id)
        margin = min(margin, drawn.margin)
        if drawn.token_id != x:
            break
    return Verified(tokens, margin)


def verify(
    p: Sequence[Floats],
    q: Sequence[Floats],
    draft_ids: Sequence[int],
    *,
    seed: int,
    position: int,
    choice: int,
) -> Verified:
    """Verify one row's drafts one after the other, by the textbook (Leviathan et al. 2023).

    Args:
        p: the target's probabilities at each depth, one more than drafts; one-hot where greedy.
        q: the draft's at each depth.
        draft_ids: ids outside the vocabulary are no drafts.
        seed, position, choice: of the noise; the position is that of the first draft.
    """
    tokens: list[int] = []
    margin = np.inf
    for depth, x in enumerate(draft_ids):
        if not 0 <= x < len(p[depth]):
            break
        u = uniform(seed, 0, position, choice, stream(Purpose.ACCEPT, depth=depth))
        ratio = p[depth][x] / q[depth][x]
        margin = min(margin, abs(ratio / u - 1.0))
        if u < ratio:
            tokens.append(x)
            continue
        at = {"seed": seed, "position": position + depth, "choice": choice}
        drawn = recovered(p[depth], q[depth], x, **at)
        return Verified([*tokens, drawn.token_id], min(margin, drawn.margin))
    depth = len(tokens)
    drawn = two_level(
        p[depth], seed=seed, position=position + depth, choice=choice, purpose=Purpose.TARGET
    )
    return Verified([*tokens, drawn.token_id], min(margin, drawn.margin))


def verify_block(
    p: Sequence[Floats],
    q: Sequence[Floats],
    draft_ids: Sequence[int],
    *,
    seed: int,
    position: int,
    choice: int,
) -> Verified:
    """Verify one row's drafts together (Sun et al. 2024, arXiv 2403.10444, algorithm 2).

    Args:
        p, q, draft_ids, seed, position, choice: as for `verify`.
    """
    drafts = list(itertools.takewhile(lambda x: 0 <= x < len(p[0]), draft_ids))
    ratios, margin, num_accepted = [1.0], np.inf, 0
    for depth, x in enumerate(drafts):
        ratios.append(min(1.0, ratios[-1] * p[depth][x] / q[depth][x]))
    for depth, ratio in enumerate(ratios[1:], start=1):
        h = ratio
        if depth < len(drafts) and ratio < 1.0:
            left = np.maximum(ratio * p[depth] - q[depth], 0.0).sum()
            h = left / (left + 1.0 - ratio)
        u = uniform(seed, 0, position, choice, stream(Purpose.ACCEPT, depth=depth - 1))
        margin = min(margin, abs(h / u - 1.0))
        if u < h:
            num_accepted = depth
    at = {"seed": seed, "position": position + num_accepted, "choice": choice}
    if num_accepted == len(drafts):
        drawn = two_level(p[num_accepted], **at, purpose=Purpose.TARGET)
    else:
        left = np.maximum(ratios[num_accepted] * p[num_accepted] - q[num_accepted], 0.0)
        weights = left if left.any() else p[num_accepted]
        drawn = two_level(weights, **at, purpose=Purpose.RESIDUAL)
    return Verified([*drafts[:num_accepted], drawn.token_id], min(margin, drawn.margin))
