"""The draws of speculative decoding in plain torch: draft, acceptance and recovered token.

A drafter proposes x from q; the target accepts it or a token is recovered (Leviathan et al.
2023, "Fast inference from transformers via speculative decoding", algorithm 1). Each decision has
a stream of noise of its own:

    draft      x ~ q                                     Purpose.DRAFT, by (first draft, depth)
    accept     u < p(x) / q(x)                           Purpose.ACCEPT, by (first draft, depth)
    recovered  ~ max(p - q, 0) / sum max(p - q, 0)       Purpose.RESIDUAL, by its own position

A greedy draft is one-hot: accept when u < p(x), recover from p without x. The bonus token after
the last accepted draft is an ordinary draw of the target (`race`, Purpose.TARGET). Where the
target is greedy, x is accepted if it is the highest logit, which is recovered otherwise.

All arithmetic is float64 but the sums of the distributions' own tiles (`race.tile_masses`). With
a = log p_i and b = log q_i the residual's weight is exp(a) (1 - exp(b - a)) for b < a, taken as
-exp(a) expm1(b - a): no digits cancel where p and q are close, and none are lost in the tails.

The kernels of `triton_drafting`, `verdict` and `residual` do the same on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from sampling.noise import (
    LEVEL_TILE,
    LEVEL_TOKEN,
    TILE,
    NoiseKey,
    Purpose,
    exponentials,
    stream,
    uniforms,
)
from sampling.race import Cut, TileMasses, greedy, tile_masses

Weigh: TypeAlias = Callable[[Tensor], Tensor]
"""Token ids int64 [n, m] to weights float64 [n, m], 0 outside the vocabulary."""

MAX_RATE = 2.0**64
"""Largest 1 / T of a draft: there any gap of logits decides, and a logit times it is finite."""
BLOCK_TILES = 16
"""Tiles of a residual weighed at a time."""


class Distribution(NamedTuple):
    """softmax(logits / T) over what a cut keeps, for each of n rows; greedy where T is 0."""

    logits: Tensor  # float32 [n, vocab_size], any row stride; -inf is a mask
    temperature: Tensor  # float64 [n]
    cut: Cut | None
    maxima: Tensor  # float32 [n, tiles]
    tile_probs: Tensor  # float64 [n, tiles], of the whole tile
    highest: Tensor  # float64 [n, 1], the highest logit
    log_mass: Tensor  # float64 [n, 1], log sum exp((logit - highest) / T)

    @classmethod
    def of(
        cls,
        logits: Tensor,
        temperature: Tensor,
        cut: Cut | None = None,
        stats: TileMasses | None = None,
    ) -> Distribution:
        """Make the distribution of n rows.

        Args:
            logits: float32 [n, vocab_size].
            temperature: float64 [n].
            cut: None keeps every token.
            stats: as `race.tile_masses` gives them; None computes them.
        """
        scale = _positive(temperature)
        maxima, masses = stats or tile_masses(logits, scale, cut)
        highest = maxima.amax(1, keepdim=True).double()
        log_masses = (maxima - highest) / scale[:, None] + masses.double().log()
        log_mass = log_masses.logsumexp(1, keepdim=True)
        probs = (log_masses - log_mass).exp()
        return cls(logits, temperature, cut, maxima, probs, highest, log_mass)

    def select(self, index: Tensor) -> Distribution:
        """The rows `index` int64 [m]."""
        cut = self.cut and Cut(*(column[index] for column in self.cut))
        logits, temperature, _, *rest = self
        return Distribution(logits[index], temperature[index], cut, *(x[index] for x in rest))

    def log_probs(self, token_ids: Tensor) -> Tensor:
        """The log-probabilities of `token_ids` int64 [n, m], float64.

        They are -inf outside the vocabulary, the mask and the cut.
        """
        x = self.logits.gather(1, token_ids.clamp(max=self.logits.shape[1] - 1))
        kept = token_ids < self.logits.shape[1]
        if self.cut is not None:
            kept &= self.cut.keeps(x, token_ids)
        scaled = (x - self.highest) / _positive(self.temperature)[:, None]
        return (scaled - self.log_mass).masked_fill(~kept, -torch.inf)

    def greedy(self) -> Tensor:
        """The lowest id among the highest logits, int64 [n]."""
        return greedy(self.logits, self.maxima)


def draft_distribution(logits: Tensor) -> Distribution:
    """The draft's q from its logits float32 [n, vocab_size], stored after temperature and masks."""
    return Distribution.of(logits, logits.new_ones(len(logits), dtype=torch.float64))


def draw(distribution: Distribution, key: NoiseKey, purpose: Purpose, depth: int = 0) -> Tensor:
    """Draw one token a row, int64 [n], in range; the highest where the temperature is 0.

    Args:
        distribution: q, or whatever else is to be drawn from.
        key: whose noise; its positions are those of the purpose, see `sampling.noise`.
        purpose: which stream of noise.
        depth: how many drafts of the step precede this one, for `Purpose.DRAFT`.
    """

    def weigh(token_ids: Tensor) -> Tensor:
        return distribution.log_probs(token_ids).exp()

    width = distribution.logits.shape[1]
    drawn = _two_level(distribution.tile_probs, weigh, width, key, purpose, depth)
    return torch.where(distribution.temperature > 0.0, drawn, distribution.greedy())


def acceptance_uniforms(key: NoiseKey, depth: int) -> Tensor:
    """The uniforms that decide acceptance, float64 [n] in (0, 1).

    The positions of `key` are those of the step's first draft.
    """
    return uniforms(key, 0, 1, stream(Purpose.ACCEPT, depth=depth))[:, 0]


def accept(
    draft_ids: Tensor,
    target: Distribution,
    draft: Distribution | None,
    key: NoiseKey,
    depth: int,
) -> Tensor:
    """Decide whether each draft is accepted, bool [n].

    Args:
        draft_ids: int64 [n], x.
        target: p.
        draft: q; None where the drafts are one-hot.
        key: positions are those of the step's first draft.
        depth: how many drafts of the step precede this one.
    """
    x = draft_ids[:, None]
    ratio = target.log_probs(x)
    if draft is not None:
        ratio = ratio - draft.log_probs(x)
    kept = acceptance_uniforms(key, depth) < ratio[:, 0].exp()
    return torch.where(target.temperature > 0.0, kept, draft_ids == target.greedy())


def recovered_draw(
    draft_ids: Tensor, target: Distribution, draft: Distribution | None, key: NoiseKey
) -> Tensor:
    """Draw the token in place of each refused draft, int64 [n].

    Args:
        draft_ids, target, draft: as for `accept`.
        key: positions are the tokens' own.
    """
    if draft is None:
        weigh = partial(_one_hot_residual, target, draft_ids[:, None])
        masses = target.tile_probs.clone()
        tile = draft_ids[:, None] // TILE
        masses.scatter_(1, tile, weigh(tile * TILE + torch.arange(TILE)).sum(1, keepdim=True))
    else:
        weigh = partial(_residual, target, draft)
        masses = _tile_masses(weigh, *target.logits.shape)
    # Rounding may leave no residual where the draft was all but sure of acceptance; the
    # token is then drawn from p.
    nothing = masses.sum(1, keepdim=True) == 0.0

    def weigh_something(token_ids: Tensor) -> Tensor:
        return torch.where(nothing, target.log_probs(token_ids).exp(), weigh(token_ids))

    masses = torch.where(nothing, target.tile_probs, masses)
    width = target.logits.shape[1]
    drawn = _two_level(masses, weigh_something, width, key, Purpose.RESIDUAL, 0)
    return torch.where(target.temperature > 0.0, drawn, target.greedy())


def _one_hot_residual(target: Distribution, draft_ids: Tensor, token_ids: Tensor) -> Tensor:
    """The weights p of `token_ids` int64 [n, m], 0 for `draft_ids` [n, 1]; float64."""
    return target.log_probs(token_ids).exp().masked_fill(token_ids == draft_ids, 0.0)


def _residual(target: Distribution, draft: Distribution, token_ids: Tensor) -> Tensor:
    """The weights max(p - q, 0) of `token_ids` int64 [n, m], float64."""
    log_p = target.log_probs(token_ids)
    gap = draft.log_probs(token_ids) - log_p  # NaN, so not below 0, where both are -inf
    return torch.where(gap < 0.0, -log_p.exp() * gap.expm1(), 0.0)


def _tile_masses(weigh: Weigh, n: int, vocab_size: int) -> Tensor:
    """Sum the weights of each tile, float64 [n, tiles], a few tiles at a time."""
    masses = []
    for first in range(0, vocab_size, BLOCK_TILES * TILE):
        token_ids = torch.arange(first, min(first + BLOCK_TILES * TILE, vocab_size))
        weights = weigh(token_ids.expand(n, -1))
        masses += [part.sum(1, keepdim=True) for part in torch.split(weights, TILE, dim=1)]
    return torch.cat(masses, dim=1)


def _two_level(
    masses: Tensor, weigh: Weigh, vocab_size: int, key: NoiseKey, purpose: Purpose, depth: int
) -> Tensor:
    """Race over any weights in two levels, as `sampling.race` does; int64 [n].

    Args:
        masses: float64 [n, tiles], the tiles' total weights up to a factor a row.
        weigh: the weights of a tile's tokens, up to a factor a row.
    """
    span = min(TILE, vocab_size)
    noise = exponentials(key, 0, masses.shape[1], stream(purpose, LEVEL_TILE, depth))
    first = noise.div_(masses).argmin(1) * TILE
    weights = weigh(first[:, None] + torch.arange(span))
    noise = exponentials(key, first, span, stream(purpose, LEVEL_TOKEN, depth))
    return first + noise.div_(weights).argmin(1)


def _positive(temperature: Tensor) -> Tensor:
    """The temperature with 1 in place of 0, where the result is not used."""
    return torch.where(temperature > 0.0, temperature, 1.0)
