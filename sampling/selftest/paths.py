"""The sampler's paths as functions of logits, positions and a seed, for `tailrace verify`.

Each calls what the engine calls on that device, in batches. `selftest.speculative_paths` has those
of speculation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.device.ranks import LoneRank, RankExchange
from sampling.kernels import race as race_kernels
from sampling.kernels import tile_pass as tile_kernels
from sampling.kernels.logits import Source
from sampling.noise import TILE, Purpose
from sampling.params import SamplingParams
from sampling.race import TileMasses, race, tile_masses
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig
from sampling.vocab_shard import VocabShard

LONE = LoneRank()


class Draws(Protocol):
    """A function that draws one token from softmax(logits) for each position."""

    def __call__(self, logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        """Draw token ids, int64 [n] on the CPU.

        Args:
            logits: float32 [vocab_size], on the CPU.
            positions: int64 [n], those of the noise contract.
            seed: the request's.
        """
        ...


def sampler_draws(
    config: SamplerConfig,
    device: torch.device,
    params: SamplingParams | None = None,
    rows_by_path: Counter[str] | None = None,
    allowed: Sequence[int] | None = None,
    exchange: RankExchange = LONE,
) -> Draws:
    """Draws of the engine's sampler for one request.

    Args:
        config, device: the sampler's.
        params: the request's; neutral if None.
        rows_by_path: counts which path drew.
        allowed: the ids that a grammar's mask allows; None has no grammar.
        exchange: the ranks that draw together, each from its shard.
    """
    params = params or SamplingParams(seed=0)

    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        rows = one_row(len(logits), params, seed, device, allowed, exchange)
        sampler = Sampler(config, rows)
        on_device, tokens = own_logits(logits, rows), []
        for batch in batches_of(positions, rows):
            tokens.append(sampler(on_device.expand(len(batch.rows), -1), batch).token_ids.cpu())
        if rows_by_path is not None:
            rows_by_path.update(sampler.rows_by_path)
        return torch.cat(tokens).long()

    return draw


def kept_and_chosen(
    config: SamplerConfig,
    device: torch.device,
    params: SamplingParams,
    logits: Tensor,
    allowed: Sequence[int] | None,
    exchange: RankExchange = LONE,
) -> tuple[int, float, float]:
    """Draw a token of one request; return it, its processed logprob and the kept logprob.

    Args:
        config, device: the sampler's.
        params: the request's.
        logits: float32 [vocab_size], on the CPU.
        allowed: the ids that a grammar's mask allows; None has no grammar.
        exchange: as for `sampler_draws`.
    """
    reporting = msgspec.structs.replace(
        params, logprobs=0, logprobs_mode="processed_logprobs", kept_logprob=True
    )
    rows = one_row(len(logits), reporting, 0, device, allowed, exchange)
    batch = next(batches_of(torch.zeros(1, dtype=torch.int64), rows))
    drawn = Sampler(config, rows)(own_logits(logits, rows)[None], batch)
    assert drawn.logprobs is not None, "the row asks for logprobs"
    return int(drawn.token_ids[0]), float(drawn.logprobs.chosen[0]), float(drawn.logprobs.kept[0])


def race_draws(device: torch.device) -> Draws:
    """Draws of the sampler's race alone, over tile statistics taken once: millions are cheap."""

    def draw(logits: Tensor, positions: Tensor, seed: int) -> Tensor:
        rows = one_row(len(logits), SamplingParams(), seed, device)
        once = _race_once_cuda if device.type == "cuda" else _race_once_cpu
        on_device = logits.to(device)
        parts = [once(on_device, part, rows) for part in batches_of(positions, rows, width=TILE)]
        return torch.cat(parts)

    return draw


class Call(NamedTuple):
    """One request of a step."""

    params: SamplingParams
    seed: int
    logits: Tensor  # float32 [vocab_size]
    slot: int  # the row it owns on the device


class Step(Protocol):
    """A function that draws the next token of several requests, each in the slot it names."""

    def __call__(self, calls: Sequence[Call]) -> list[int]:
        """Draw one token a call, in their order."""
        ...


def sampler_step(
    config: SamplerConfig, device: torch.device, *, num_slots: int, exchange: RankExchange = LONE
) -> Step:
    """A step of the engine's sampler, which draws each request's token at position 5."""
    position = 5

    def step(calls: Sequence[Call]) -> list[int]:
        history = torch.arange(position, dtype=torch.int32, device=device)
        vocab_size = len(calls[0].logits)
        rows = SamplingRows(
            num_slots,
            vocab_size,
            device,
            history=history.expand(num_slots, -1).contiguous(),
            shard=shard_of(vocab_size, exchange),
        )
        for call in calls:
            rows.add(
                call.slot, call.params, seed=call.seed, choice=0, prompt_len=2, num_tokens=position
            )
        rows.flush()
        rows_np = np.array([call.slot for call in calls], dtype=np.int32)
        batch = SamplingBatch(
            rows=torch.from_numpy(rows_np).to(device),
            positions=torch.full((len(calls),), position, dtype=torch.int64, device=device),
            rows_np=rows_np,
            needs=rows.needs(rows_np),
        )
        logits = own_logits(torch.stack([call.logits for call in calls]), rows)
        token_ids: list[int] = Sampler(config, rows)(logits, batch).token_ids.tolist()
        return token_ids

    return step


def _race_once_cpu(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Tensor:
    n, one = len(batch.rows), torch.ones(1, dtype=torch.float64)
    stats = TileMasses(*(column.expand(n, -1) for column in tile_masses(logits[None], one)))
    key = rows.noise_key(batch.rows, batch.positions)
    return race(logits.expand(n, -1), stats, one.expand(n), key, Purpose.TARGET)


def _race_once_cuda(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Tensor:
    n = len(batch.rows)
    source = Source.of(logits.expand(n, -1), batch, rows)
    one = source._replace(rows=source.rows[:1])
    stats = tile_kernels.tile_pass(one, edited=False, peaked=False, reported=False)
    spread = stats._replace(
        maxima=stats.maxima.expand(n, -1).contiguous(),
        masses=stats.masses.expand(n, -1).contiguous(),
    )
    picked = race_kernels.pick(source, spread, None, edited=False, reported=False)
    return picked.token_ids.cpu().long()


def one_row(
    vocab_size: int,
    params: SamplingParams,
    seed: int,
    device: torch.device,
    allowed: Sequence[int] | None = None,
    exchange: RankExchange = LONE,
) -> SamplingRows:
    """Make one sampling row that every drawn token shares, as if one request had all positions.

    With `allowed`, it has a grammar whose mask allows these ids.
    """
    history = torch.zeros((1, 1), dtype=torch.int32, device=device)
    shard = shard_of(vocab_size, exchange)
    if allowed is None:
        rows = SamplingRows(1, vocab_size, device, history=history, shard=shard)
    else:
        rows = SamplingRows(1, vocab_size, device, history=history, max_masks=1, shard=shard)
        params = msgspec.structs.replace(params, constrained=True)
        bits = np.zeros(32 * rows.grammar_masks.shape[1], dtype=np.uint8)
        bits[list(allowed)] = 1
        rows.put_masks(np.packbits(bits, bitorder="little").view("<i4")[None])
    rows.add(0, params, seed=seed, choice=0, prompt_len=0, num_tokens=0)
    rows.flush()
    return rows


def shard_of(vocab_size: int, exchange: RankExchange) -> VocabShard:
    """A rank's shard; all ids where there are too few to be divided."""
    if -(-vocab_size // TILE) < exchange.size:
        return VocabShard.whole(vocab_size)
    return VocabShard.split(vocab_size, exchange)


def own_logits(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The part of logits [..., vocab_size] that this rank holds, on the rows' device."""
    first, width = rows.shard.first, rows.shard.width
    return logits[..., first : first + width].contiguous().to(rows.device)


def batches_of(
    positions: Tensor, rows: SamplingRows, *, width: int | None = None
) -> Iterator[SamplingBatch]:
    """Split positions into batches that fit the cache of a CPU or the memory of a GPU.

    Args:
        positions: int64 [n].
        rows: as `one_row` makes them.
        width: numbers worked on for each position; the vocabulary if None.
    """
    numbers = 1 << (28 if rows.device.type == "cuda" else 20)
    size = max(1, numbers // max(width or rows.vocab_size, TILE))
    for part in torch.split(positions, size):
        rows_np = np.zeros(len(part), dtype=np.int32)
        zeros = torch.zeros(len(part), dtype=torch.int32, device=rows.device)
        yield SamplingBatch(
            rows=zeros,
            positions=part.to(rows.device),
            rows_np=rows_np,
            needs=rows.needs(rows_np),
            mask_slots=zeros if len(rows.grammar_masks) else None,
        )
