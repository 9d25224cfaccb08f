"""Draws of a divided vocabulary beside those of a whole one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sampling.device.ranks import RankExchange
from sampling.noise import TILE
from sampling.vocab_shard import VocabShard

VOCAB = 5 * TILE + 300

FILTERS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 700},
    {"top_k": 700, "top_p": 0.95, "min_p": 1e-4},
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"top_p": 0.97, "temperature": 5.0},
    {"min_p": 0.05},
    {"min_p": 1e-7, "top_k": 129, "top_p": 1e-9},
]

WISHES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 1e-9},
    {"temperature": 1e-40},
    *FILTERS,
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": -0.4},
    {"logit_bias": {0: 9.0, TILE: 8.0, VOCAB - 1: 9.5}, "top_p": 0.9},
    {"logit_bias": {3 * TILE: 50.0}, "temperature": 0.0},
    {"allowed_token_ids": (5, TILE - 1, TILE, 4 * TILE + 3)},
    {"allowed_token_ids": (VOCAB - 1,)},
    {"bad_words": ((7,), (2, 3, 4100)), "temperature": 0.0},
    {"min_tokens": 3, "stop_token_ids": (TILE + 1, 0), "top_k": 5},
]

REPORTS: list[dict[str, Any]] = [
    {"logprobs": 5},
    {"logprobs": 20, "logprobs_mode": "raw_logits"},
    {"logprobs": 0, "logprobs_mode": "processed_logprobs", "kept_logprob": True},
    {"logprobs": 3, "logprobs_mode": "processed_logits", "logprob_token_ids": (0, TILE, VOCAB - 1)},
    {"logprob_token_ids": (VOCAB - 1, 2 * TILE, 2 * TILE, 1)},
    {"kept_logprob": True, "top_p": 0.8},
]


def sharded(vocab_size: int, exchange: RankExchange) -> VocabShard:
    if exchange.size == 1:
        return VocabShard.whole(vocab_size)
    return VocabShard.split(vocab_size, exchange)


def own(logits: Tensor, shard: VocabShard) -> Tensor:
    return logits[:, shard.first : shard.first + shard.width].clone()


def flat(value: Any) -> list[Tensor]:
    """The tensors of nested tuples, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [] if value is None else [tensor for part in value for tensor in flat(part)]


def same(a: Any, b: Any) -> bool:
    """Whether all tensors are equal, bit for bit; NaN is equal to NaN."""
    pairs = list(zip(flat(a), flat(b), strict=True))
    return all(x.dtype == y.dtype and torch.equal(_bits(x), _bits(y)) for x, y in pairs)


def _bits(x: Tensor) -> Tensor:
    kinds = {torch.float32: torch.int32, torch.float64: torch.int64}
    return x.nan_to_num(nan=1e30).contiguous().view(kinds[x.dtype]) if x.dtype in kinds else x
