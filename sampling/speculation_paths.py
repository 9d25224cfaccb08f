"""The paths of speculation as draws from softmax(logits), for `tailrace verify`.

A set-up leaves them no other choice: a draft token beside the vocabulary holds all the mass that
acceptance would take, so the recovered token has the distribution softmax(logits); acceptance of
the second of two tokens has that token's probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from sampling import draw_kernels, draws, residual_kernels
from sampling.batch import SamplingBatch
from sampling.draw_kernels import Draft, Target
from sampling.draws import Distribution, draft_distribution
from sampling.logit_kernels import Source
from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.paths import Draws, batches_of, one_row, sampler_draws
from sampling.sampler import SamplerConfig
from sampling.tile_kernels import tile_pass

DRAFT_DEPTH = 1
"""Depth at which drafts are drawn and accepted here."""

PathMaker = Callable[[SamplerConfig, torch.device], Draws]


def draft_draws(config: SamplerConfig, device: torch.device) -> Draws:
    """The draft's draw at `DRAFT_DEPTH`; needs no configuration, its noise is always float64."""

    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        rows = one_row(len(logits), SamplingParams(), seed, device)
        on_device, tokens = logits.to(device), []
        for batch in batches_of(positions, rows):
            n = len(batch.rows)
            spread = on_device.expand(n, -1)
            if device.type == "cuda":
                greedy = torch.zeros(n, dtype=torch.bool, device=device)
                drawn, _ = draw_kernels.draft_draw(spread, batch, rows, greedy, DRAFT_DEPTH)
            else:
                key = rows.noise_key(batch.rows, batch.positions)
                q = draft_distribution(spread)
                drawn = draws.draw(q, key, Purpose.DRAFT, DRAFT_DEPTH)
            tokens.append(drawn.cpu().long())
        return torch.cat(tokens)

    return draw


def accept_draws(config: SamplerConfig, device: torch.device) -> Draws:
    """1 where a one-hot draft of token 1 is accepted at `DRAFT_DEPTH`, else 0; two logits."""

    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        speculation = Speculation(logits, None, seed, device)
        kept = speculation.accept(torch.ones_like(positions), positions)
        return kept.long()

    return draw


def recovered_draws(config: SamplerConfig, device: torch.device) -> Draws:
    """The recovered token after a one-hot draft."""
    return _recovered(device, has_draft=False)


def recovered_from_logits_draws(config: SamplerConfig, device: torch.device) -> Draws:
    """The recovered token after a draft with draft logits."""
    return _recovered(device, has_draft=True)


PATHS: dict[str, tuple[PathMaker, Purpose]] = {
    "sampler": (sampler_draws, Purpose.TARGET),
    "draft": (draft_draws, Purpose.DRAFT),
    "accept": (accept_draws, Purpose.ACCEPT),
    "recovered, one-hot draft": (recovered_draws, Purpose.RESIDUAL),
    "recovered, draft logits": (recovered_from_logits_draws, Purpose.RESIDUAL),
}
"""All that `--use-fp64-gumbel` promises float64 noise for, on every device."""


def _recovered(device: torch.device, *, has_draft: bool) -> Draws:
    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        beside = len(logits)
        target = torch.cat((logits, logits.logsumexp(0)[None]))
        draft = torch.full_like(target, -torch.inf)
        draft[beside] = 0.0
        speculation = Speculation(target, draft if has_draft else None, seed, device)
        return speculation.recover(torch.full_like(positions, beside), positions)

    return draw


class SpeculatedDraws(Protocol):
    """Draws a draft, accepts it or recovers another token, for each position."""

    def __call__(
        self, logits: Tensor, draft_logits: Tensor, positions: Tensor, seed: int
    ) -> Tensor:
        """Token ids int64 [n]; as `Draws`, with the draft's logits beside the target's."""
        ...


def speculated_draws(
    config: SamplerConfig, device: torch.device, *, one_hot: bool
) -> SpeculatedDraws:
    """One speculated token a position, by the draft, accept and recovered paths together.

    Args:
        one_hot: the drafts are the draft's highest token; else they are drawn from its logits.
    """

    def draw(logits: Tensor, draft_logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        if one_hot:
            x = draft_logits.argmax().expand(len(positions))
        else:
            x = draft_draws(config, device)(draft_logits, positions, seed)
        speculation = Speculation(logits, None if one_hot else draft_logits, seed, device)
        kept = speculation.accept(x, positions)
        return torch.where(kept, x, speculation.recover(x, positions + DRAFT_DEPTH))

    return draw


class Speculation:
    """Acceptance and recovery for one request, as the engine's verification makes them.

    Args:
        logits: float32 [vocab_size], the target's.
        draft_logits: float32 [vocab_size], the draft's; None for one-hot drafts.
        seed: of the request.
        device: whose implementation.
    """

    def __init__(
        self, logits: Tensor, draft_logits: Tensor | None, seed: int, device: torch.device
    ) -> None:
        self._rows = one_row(len(logits), SamplingParams(), seed, device)
        self._logits = logits.to(device)
        self._draft_logits = None if draft_logits is None else draft_logits.to(device)

    def accept(self, draft_ids: Tensor, positions: Tensor) -> Tensor:
        """Bool [n]; `positions` int64 [n] are those of the step's first draft."""
        kept = []
        own = positions + DRAFT_DEPTH  # where the draft itself stands
        for x, batch in self._batches(draft_ids, own):
            n = len(x)
            if x.is_cuda:
                source, target, draft = self._on_device(batch)
                depths = torch.full((n,), DRAFT_DEPTH, dtype=torch.int32, device=x.device)
                part = draw_kernels.accept(source, target, draft, x, depths, edited=False)
            else:
                key = self._rows.noise_key(batch.rows, batch.positions - DRAFT_DEPTH)
                part = draws.accept(x, *self._distributions(n), key, DRAFT_DEPTH)
            kept.append(part.cpu())
        return torch.cat(kept)

    def recover(self, draft_ids: Tensor, positions: Tensor) -> Tensor:
        """Int64 [n]; `positions` int64 [n] are the tokens' own."""
        tokens = []
        for x, batch in self._batches(draft_ids, positions):
            n = len(x)
            if x.is_cuda:
                source, target, draft = self._on_device(batch)
                wanted = torch.ones(n, dtype=torch.bool, device=x.device)
                part = residual_kernels.recovered_draw(
                    source, target, draft, x, wanted, edited=False
                )
            else:
                key = self._rows.noise_key(batch.rows, batch.positions)
                part = draws.recovered_draw(x, *self._distributions(n), key)
            tokens.append(part.cpu().long())
        return torch.cat(tokens)

    def _batches(
        self, draft_ids: Tensor, positions: Tensor
    ) -> Iterator[tuple[Tensor, SamplingBatch]]:
        first = 0
        for batch in batches_of(positions, self._rows):
            last = first + len(batch.rows)
            yield draft_ids[first:last].to(self._logits.device), batch
            first = last

    def _distributions(self, n: int) -> tuple[Distribution, Distribution | None]:
        ones = torch.ones(n, dtype=torch.float64)
        target = Distribution.of(self._logits.expand(n, -1), ones)
        if self._draft_logits is None:
            return target, None
        return target, draft_distribution(self._draft_logits.expand(n, -1))

    def _on_device(self, batch: SamplingBatch) -> tuple[Source, Target, Draft | None]:
        n = len(batch.rows)
        source = Source.of(self._logits.expand(n, -1), batch, self._rows)
        stats = tile_pass(source, edited=False, peaked=False, reported=False)
        target = Target.of(stats, None)
        if self._draft_logits is None:
            return source, target, None
        logits = self._draft_logits.expand(n, -1)
        drafts = Source.of(logits, batch, self._rows)
        stats = tile_pass(drafts, edited=False, peaked=False, reported=True)
        return source, target, Draft(logits, logits.stride(0), stats.raw_maxima, stats.raw_masses)
