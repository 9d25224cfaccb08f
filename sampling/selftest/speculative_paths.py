"""The paths of speculation as draws from softmax(logits), for `tailrace verify`.

All call what the engine calls, `drafting.draw_drafts` and `verification.verify`. To get recovered
tokens every draft is refused (`synthetic`, at a rate of 0). The draft is an additional token after
the vocabulary, so that the recovered token has the distribution softmax(logits). Acceptance of the
second of two tokens has that token's probability: its draft's logits leave nothing else, and p / q
is p.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.device.ranks import RankExchange
from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.sampler import SamplerConfig
from sampling.selftest.paths import LONE, Draws, batches_of, one_row, own_logits, sampler_draws
from sampling.speculative import verification
from sampling.speculative.drafting import draw_drafts, kept_shard
from sampling.speculative.verification import Method

DRAFT_DEPTH = 1
"""Depth at which drafts are drawn and accepted here."""


class PathMaker(Protocol):
    """Makes the draws of a path; `exchange` is that of the ranks that draw together."""

    def __call__(
        self, config: SamplerConfig, device: torch.device, *, exchange: RankExchange = LONE
    ) -> Draws: ...


def draft_draws(
    config: SamplerConfig, device: torch.device, *, exchange: RankExchange = LONE
) -> Draws:
    """Draws of a draft at `DRAFT_DEPTH`.

    It needs no configuration: its noise is always float64.
    """

    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        rows = one_row(len(logits), SamplingParams(), seed, device, exchange=exchange)
        draw_some = partial(draw_drafts, rows=rows, depth=DRAFT_DEPTH, method="gumbel")
        on_device, tokens = own_logits(logits, rows), []
        slot = torch.empty((1, 1 + DRAFT_DEPTH, kept_shard(rows).width), device=device)
        for batch in batches_of(positions, rows):
            spread = on_device.expand(len(batch.rows), -1)
            drawn = draw_some(spread, batch, draft_logits=slot, shard=rows.shard)
            tokens.append(drawn.cpu().long())
        return torch.cat(tokens)

    return draw


def accept_draws(
    config: SamplerConfig, device: torch.device, *, exchange: RankExchange = LONE
) -> Draws:
    """Acceptances as draws: 1 where a sure draft of token 1 is accepted, of two, else 0."""

    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        x, sure = torch.ones_like(positions), torch.full_like(logits, -torch.inf)
        sure[1] = 0.0
        verified = _at_depth(logits, sure, x, positions, seed, device, exchange=exchange)
        return (verified.num_accepted == 2).long()

    return draw


def recovered_draws(
    config: SamplerConfig, device: torch.device, *, exchange: RankExchange = LONE
) -> Draws:
    """Draws of the recovered token after a one-hot draft."""
    return _recovered(device, exchange, has_draft_logits=False)


def recovered_from_logits_draws(
    config: SamplerConfig, device: torch.device, *, exchange: RankExchange = LONE
) -> Draws:
    """Draws of the recovered token after a draft with draft logits."""
    return _recovered(device, exchange, has_draft_logits=True)


PATHS: dict[str, tuple[PathMaker, Purpose]] = {
    "sampler": (sampler_draws, Purpose.TARGET),
    "draft": (draft_draws, Purpose.DRAFT),
    "accept": (accept_draws, Purpose.ACCEPT),
    "recovered, one-hot draft": (recovered_draws, Purpose.RESIDUAL),
    "recovered, draft logits": (recovered_from_logits_draws, Purpose.RESIDUAL),
}
"""Every path for which `--use-fp64-gumbel` promises float64 noise, on every device."""


def _recovered(device: torch.device, exchange: RankExchange, *, has_draft_logits: bool) -> Draws:
    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        beside = len(logits)
        target = torch.cat((logits, logits.logsumexp(0)[None]))
        draft = torch.full_like(target, -torch.inf)
        draft[beside] = 0.0
        verified = _verified(
            target.expand(2, -1),
            draft[None] if has_draft_logits else None,
            torch.full((len(positions), 1), beside),
            positions,
            seed,
            device,
            method="synthetic",
            rates=torch.zeros(1, dtype=torch.float64),
            exchange=exchange,
        )
        return verified.token_ids[:, 0].long()

    return draw


class SpeculatedDraws(Protocol):
    """A function that drafts a token and accepts it or draws another, for each position."""

    def __call__(
        self, logits: Tensor, draft_logits: Tensor, positions: Tensor, seed: int
    ) -> Tensor:
        """Draw token ids, int64 [n]; as `Draws`, with the draft's logits beside the target's."""
        ...


def speculated_draws(
    config: SamplerConfig,
    device: torch.device,
    *,
    one_hot: bool,
    allowed: Sequence[int] | None = None,
    exchange: RankExchange = LONE,
) -> SpeculatedDraws:
    """Draws of one speculated token a position: drafted, then accepted or replaced.

    Args:
        one_hot: the drafts are the draft's highest token; else they are drawn from its logits.
        allowed: the ids that a grammar's mask allows at that position, not known to the draft;
            None has no grammar.
        exchange: as for a `PathMaker`.
    """

    def draw(logits: Tensor, draft_logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        if one_hot:
            x = draft_logits.argmax().expand(len(positions))
        else:
            x = draft_draws(config, device, exchange=exchange)(draft_logits, positions, seed)
        q = None if one_hot else draft_logits
        verified = _at_depth(logits, q, x, positions, seed, device, allowed, exchange)
        return verified.token_ids[:, DRAFT_DEPTH].long()

    return draw


def _at_depth(
    logits: Tensor,
    draft_logits: Tensor | None,
    x: Tensor,
    positions: Tensor,
    seed: int,
    device: torch.device,
    allowed: Sequence[int] | None = None,
    exchange: RankExchange = LONE,
) -> Verification:
    """Verify the drafts `x` at `DRAFT_DEPTH`, after drafts that are always accepted.

    Args:
        logits: float32 [vocab_size], the target's.
        draft_logits: float32 [vocab_size], the draft's; None for one-hot drafts.
        x: int64 [n].
        positions: int64 [n], those of the step's first draft.
        seed: the request's.
        device: where to verify.
        allowed: the ids that a grammar's mask allows at `DRAFT_DEPTH`; None has no grammar.
        exchange: as for a `PathMaker`.
    """
    sure = torch.full_like(logits, -torch.inf)
    sure[0] = 0.0
    before = [sure] * DRAFT_DEPTH
    drafts = torch.zeros((len(x), 1 + DRAFT_DEPTH), dtype=torch.int64)
    drafts[:, DRAFT_DEPTH] = x
    q = None if draft_logits is None else torch.stack([*before, draft_logits])
    target = torch.stack([*before, logits, logits])
    return _verified(target, q, drafts, positions, seed, device, allowed, exchange=exchange)


def _verified(
    logits: Tensor,
    draft_logits: Tensor | None,
    draft_ids: Tensor,
    positions: Tensor,
    seed: int,
    device: torch.device,
    allowed: Sequence[int] | None = None,
    *,
    method: Method = "standard",
    rates: Tensor | None = None,
    exchange: RankExchange = LONE,
) -> Verification:
    """Verify k drafts a position, by the same logits everywhere; the result is on the CPU.

    Args:
        logits: float32 [1 + k, vocab_size]. draft_logits: float32 [k, vocab_size] or None.
        draft_ids: int64 [n, k]. positions: int64 [n], as for `_at_depth`.
        seed, device, allowed, exchange: as for `_at_depth`.
        method, rates: as for `verification.verify`.
    """
    depths, vocab_size = logits.shape
    rows = one_row(vocab_size, SamplingParams(), seed, device, allowed, exchange)
    on_device = own_logits(logits, rows)
    slots = None
    if draft_logits is not None:
        kept = kept_shard(rows)
        slots = draft_logits[None, :, kept.first : kept.first + kept.width].to(device)
        slots = slots.contiguous()
    rates = None if rates is None else rates.to(device)
    parts, first = [], 0
    for batch in batches_of(positions, rows, width=depths * vocab_size):
        n = len(batch.rows)
        drafts = Drafts(
            starts=torch.arange(0, n * depths, depths, device=device),
            num_drafts=torch.full((n,), depths - 1, dtype=torch.int32, device=device),
            token_ids=draft_ids[first : first + n].int().to(device),
            room=torch.full((n,), depths, dtype=torch.int32, device=device),
            logits=slots,
        )
        parts.append(
            verification.verify(
                on_device.repeat(n, 1),
                _spread(batch, depths, rows),
                rows,
                drafts,
                method,
                rates,
            )
        )
        first += n
    return Verification(
        torch.cat([part.token_ids for part in parts]).cpu(),
        torch.cat([part.num_new for part in parts]).cpu(),
        torch.cat([part.num_accepted for part in parts]).cpu(),
        torch.cat([part.bad for part in parts]).cpu(),
        logprobs=None,
    )


def _spread(batch: SamplingBatch, depths: int, rows: SamplingRows) -> SamplingBatch:
    """Repeat each position's logit row for all depths; a mask holds at `DRAFT_DEPTH` alone."""
    depth = torch.arange(depths, dtype=torch.int32, device=rows.device).repeat(len(batch.rows))
    rows_np = batch.rows_np.repeat(depths)
    return SamplingBatch(
        rows=batch.rows.repeat_interleave(depths),
        positions=batch.positions.repeat_interleave(depths) + depth,
        rows_np=rows_np,
        needs=batch.needs,
        depths=depth,
        mask_slots=None if batch.mask_slots is None else (depth == DRAFT_DEPTH).int() - 1,
    )
