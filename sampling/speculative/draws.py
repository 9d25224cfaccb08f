"""The draws of speculative decoding in plain torch: draft, acceptance and recovered token.

A drafter proposes x from q; the target accepts it or a token is recovered (Leviathan et al.
2023, "Fast inference from transformers via speculative decoding", algorithm 1). Each decision has
a stream of noise of its own:

    draft      x ~ q                                     Purpose.DRAFT, by (first draft, depth)
    accept     u < p(x) / q(x)                           Purpose.ACCEPT, by (first draft, depth)
    recovered  ~ max(p - q, 0) / sum max(p - q, 0)       Purpose.RESIDUAL, by its own position

A greedy draft is one-hot: it is accepted if it is the target's own draw, which is the token else
(`verification`); only where drafts are accepted at a given rate a token is recovered in its place,
from p without x. The bonus token after the last accepted draft is an ordinary draw of the target
(`race`, Purpose.TARGET). Where the target is greedy, x is accepted if it is the highest logit,
which is recovered otherwise.

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
from sampling.race import Cut, TileMasses, all_masses, greedy, race, tile_masses
from sampling.vocab_shard import VocabShard

Weigh: TypeAlias = Callable[[Tensor], Tensor]
"""Token ids int64 [n, m] to weights float64 [n, m], 0 outside the shard."""

MAX_RATE = 2.0**64
"""Largest 1 / T of a draft: there any gap of logits decides, and a logit times it is finite."""
RESIDUAL = Purpose.RESIDUAL
"""Whose noise recovers a token: no draft's."""
BLOCK_TILES = 16
"""Tiles of a residual weighed at a time."""


class Distribution(NamedTuple):
    """softmax(logits / T) over what a cut keeps, for each of n rows; greedy where T is 0.

    It is the distribution over the whole vocabulary, of which a rank holds a shard.
    """

    logits: Tensor  # float32 [n, width], the shard's, any row stride; -inf is a mask
    temperature: Tensor  # float64 [n]
    cut: Cut | None
    tile_probs: Tensor  # float64 [n, tiles], of the shard's whole tiles
    highest: Tensor  # float64 [n, 1], the highest logit
    log_mass: Tensor  # float64 [n, 1], log sum exp((logit - highest) / T)
    shard: VocabShard

    @classmethod
    def of(
        cls,
        logits: Tensor,
        temperature: Tensor,
        cut: Cut | None = None,
        stats: TileMasses | None = None,
        shard: VocabShard | None = None,
    ) -> Distribution:
        """Make the distribution of n rows.

        Args:
            logits: float32 [n, width], the shard's.
            temperature: float64 [n].
            cut: None keeps every token.
            stats: as `race.tile_masses` gives them; None computes them.
            shard: which ids they are; None is all of the vocabulary.
        """
        shard = shard or VocabShard.whole(logits.shape[1])
        scale = _positive(temperature)
        stats = stats or tile_masses(logits, scale, cut, shard.first)
        maxima, masses = all_masses(stats, shard)
        highest = maxima.amax(1, keepdim=True).double()
        log_masses = (maxima - highest) / scale[:, None] + masses.double().log()
        log_mass = log_masses.logsumexp(1, keepdim=True)
        own = slice(shard.first_tile, shard.first_tile + stats.maxima.shape[1])
        probs = (log_masses[:, own] - log_mass).exp()
        return cls(logits, temperature, cut, probs, highest, log_mass, shard)

    def select(self, index: Tensor) -> Distribution:
        """The rows `index` int64 [m]."""
        cut = self.cut and Cut(*(column[index] for column in self.cut))
        return Distribution(
            logits=self.logits[index],
            temperature=self.temperature[index],
            cut=cut,
            tile_probs=self.tile_probs[index],
            highest=self.highest[index],
            log_mass=self.log_mass[index],
            shard=self.shard,
        )

    def log_probs(self, token_ids: Tensor) -> Tensor:
        """The log-probabilities of `token_ids` int64 [n, m], float64.

        They are -inf outside the shard, the mask and the cut.
        """
        columns, kept = self.shard.columns(token_ids)
        x = self.logits.gather(1, columns)
        if self.cut is not None:
            kept &= self.cut.keeps(x, token_ids)
        scaled = (x - self.highest) / _positive(self.temperature)[:, None]
        return (scaled - self.log_mass).masked_fill(~kept, -torch.inf)

    def scaled(self, log_factor: Tensor) -> Distribution:
        """The same with `log_probs` higher by `log_factor` float64 [n]."""
        return self._replace(log_mass=self.log_mass - log_factor[:, None])

    def greedy(self) -> Tensor:
        """The lowest id among the highest logits, int64 [n]."""
        return greedy(self.logits, self.shard)


def draft_distribution(logits: Tensor, shard: VocabShard | None = None) -> Distribution:
    """The draft's q from its logits float32 [n, width], stored after temperature and masks.

    Args:
        shard: which ids they are; None is all of the vocabulary.
    """
    return Distribution.of(logits, _ones(logits), shard=shard)


def draw_draft(
    logits: Tensor,
    key: NoiseKey,
    purpose: Purpose,
    depth: int = 0,
    shard: VocabShard | None = None,
) -> Tensor:
    """Draw one draft a row from softmax(logits), int64 [n], in range.

    Of several ranks each sends 20 bytes a row.

    Args:
        logits: float32 [n, width], after temperature and masks.
        key: whose noise; its positions are those of the purpose, see `sampling.noise`.
        purpose: which stream of noise.
        depth: how many drafts of the step precede this one, for `Purpose.DRAFT`.
        shard: as for `draft_distribution`.
    """
    shard = shard or VocabShard.whole(logits.shape[1])
    ones = _ones(logits)
    stats = tile_masses(logits, ones, first=shard.first)
    highest = shard.highest(stats.maxima.amax(1))
    return race(logits, stats, ones, key, purpose, shard=shard, highest=highest, depth=depth)


def acceptance_uniforms(key: NoiseKey, depth: int) -> Tensor:
    """The uniforms that decide acceptance, float64 [n] in (0, 1).

    The positions of `key` are those of the step's first draft.
    """
    return uniforms(key, 0, 1, stream(Purpose.ACCEPT, depth=depth))[:, 0]


def accept(
    draft_ids: Tensor,
    target: Distribution,
    draft: Distribution,
    key: NoiseKey,
    depth: int,
) -> Tensor:
    """Decide whether each draft is accepted, bool [n].

    Args:
        draft_ids: int64 [n], x.
        target: p.
        draft: q.
        key: positions are those of the step's first draft.
        depth: how many drafts of the step precede this one.
    """
    ids = draft_ids[:, None]
    ratio = target.log_probs(ids) - draft.log_probs(ids)
    ratio = target.shard.of_owners(ratio, ids)[:, 0]
    kept = acceptance_uniforms(key, depth) < ratio.exp()
    return torch.where(target.temperature > 0.0, kept, draft_ids == target.greedy())


def residual_mass(target: Distribution, draft: Distribution) -> Tensor:
    """The sum of max(p - q, 0) over the vocabulary, float64 [n]."""
    masses = _tile_masses(partial(_residual, target, draft), len(target.logits), target.shard)
    return target.shard.all_tiles(masses).sum(1)


def recovered_draw(
    draft_ids: Tensor, target: Distribution, draft: Distribution | None, key: NoiseKey
) -> Tensor:
    """Draw the token in place of each refused draft, int64 [n].

    Args:
        draft_ids, target: as for `accept`.
        draft: q; None where the drafts are one-hot.
        key: positions are the tokens' own.
    """
    shard = target.shard
    if draft is None:
        weigh = partial(_one_hot_residual, target, draft_ids[:, None])
        masses = _without(draft_ids, target.tile_probs, weigh, shard)
    else:
        weigh = partial(_residual, target, draft)
        masses = _tile_masses(weigh, len(draft_ids), shard)
    # Rounding may leave no residual where the draft was all but sure of acceptance; the
    # token is then drawn from p.
    nothing = shard.total((masses > 0.0).any(1, keepdim=True).int()) == 0

    def weigh_something(token_ids: Tensor) -> Tensor:
        return torch.where(nothing, target.log_probs(token_ids).exp(), weigh(token_ids))

    masses = torch.where(nothing, target.tile_probs, masses)
    drawn = _residual_race(masses, weigh_something, shard, key)
    return torch.where(target.temperature > 0.0, drawn, target.greedy())


def _without(draft_ids: Tensor, masses: Tensor, weigh: Weigh, shard: VocabShard) -> Tensor:
    """The shard's tile masses float64 [n, tiles], those of the drafts' tiles weighed anew."""
    columns, held = shard.columns(draft_ids[:, None])
    tile = columns // TILE
    weighed = weigh(shard.first + tile * TILE + torch.arange(TILE)).sum(1, keepdim=True)
    return masses.scatter(1, tile, torch.where(held, weighed, masses.gather(1, tile)))


def _one_hot_residual(target: Distribution, draft_ids: Tensor, token_ids: Tensor) -> Tensor:
    """The weights p of `token_ids` int64 [n, m], 0 for `draft_ids` [n, 1]; float64."""
    return target.log_probs(token_ids).exp().masked_fill(token_ids == draft_ids, 0.0)


def _residual(target: Distribution, draft: Distribution, token_ids: Tensor) -> Tensor:
    """The weights max(p - q, 0) of `token_ids` int64 [n, m], float64."""
    log_p = target.log_probs(token_ids)
    gap = draft.log_probs(token_ids) - log_p  # NaN, so not below 0, where both are -inf
    return torch.where(gap < 0.0, -log_p.exp() * gap.expm1(), 0.0)


def _tile_masses(weigh: Weigh, n: int, shard: VocabShard) -> Tensor:
    """Sum the weights of each of the shard's tiles, float64 [n, tiles], a few tiles at a time."""
    masses = []
    for token_ids in torch.split(shard.token_ids(), BLOCK_TILES * TILE):
        weights = weigh(token_ids.expand(n, -1))
        masses += [part.sum(1, keepdim=True) for part in torch.split(weights, TILE, dim=1)]
    return torch.cat(masses, dim=1)


def _residual_race(masses: Tensor, weigh: Weigh, shard: VocabShard, key: NoiseKey) -> Tensor:
    """Race over a residual's weights in two levels, as `sampling.race` does; int64 [n].

    Args:
        masses: float64 [n, tiles], the total weights of the shard's tiles, up to a factor a row
            that is the same for all shards.
        weigh: the weights of a tile's tokens, up to a factor a row.
    """
    span, num_tiles = min(TILE, shard.vocab_size), masses.shape[1]
    noise = exponentials(key, shard.first_tile, num_tiles, stream(RESIDUAL, LEVEL_TILE))
    best, tile = noise.div_(masses).min(1)
    first = shard.first + tile * TILE
    weights = weigh(first[:, None] + torch.arange(span))
    noise = exponentials(key, first, span, stream(RESIDUAL, LEVEL_TOKEN))
    return shard.winner(best, first + noise.div_(weights).argmin(1))


def _ones(logits: Tensor) -> Tensor:
    """A temperature of 1 for each row, float64 [n]."""
    return logits.new_ones(len(logits), dtype=torch.float64)


def _positive(temperature: Tensor) -> Tensor:
    """The temperature with 1 in place of 0, where the result is not used."""
    return torch.where(temperature > 0.0, temperature, 1.0)
