"""How much of a fused decoder each rank has: its heads, columns and tiles, and what cannot divide.

Query heads are divided evenly, and key heads too; where there are fewer than ranks, neighbouring
ranks hold the same one. The columns of an MLP, and of every expert, are divided evenly, or by whole
groups of those that one scale of a quantised weight stands for: then some ranks have a group more
than others. The vocabulary is divided by tiles (`sampling.vocab_shard`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from engine.errors import ModelError
from engine.models.families.decoder_config import DecoderConfig
from sampling.device.ranks import RankExchange
from sampling.noise import TILE
from sampling.vocab_shard import VocabShard

RANKS_FLAG = "--tensor-parallel-size"
"""The flag that sets the number of ranks, for errors."""

HEADS, KEYS, VOCAB = "heads", "key heads", "ids"
INNER, EXPERT, SHARED = "columns", "columns of an expert", "columns of the shared expert"
"""What is divided."""


class RankShare(NamedTuple):
    """A rank's range of something that ranks divide: `length` of `whole`, from `first` on."""

    first: int
    length: int
    whole: int


Shares = dict[str, RankShare]
"""A rank's shares, by what is divided."""


def shares_of(config: DecoderConfig, exchange: RankExchange, group: int) -> Shares:
    """The shares of a rank in a decoder that `check_shards` lets pass.

    Args:
        exchange: the ranks; its messages are not used.
        group: columns that no two ranks may share, see `Quantization.input_group`.
    """
    rank, size = exchange.rank, exchange.size
    heads, keys = config.num_q_heads // size, max(config.num_kv_heads // size, 1)
    first_key = rank * min(config.num_kv_heads, size) // size * keys
    vocab = VocabShard.split(config.vocab_size, exchange)

    def columns(whole: int) -> RankShare:
        num_groups = -(-whole // group)
        first, end = (min(num_groups * i // size * group, whole) for i in (rank, rank + 1))
        return RankShare(first, end - first, whole)

    experts = config.experts
    return {
        HEADS: RankShare(rank * heads, heads, config.num_q_heads),
        KEYS: RankShare(first_key, keys, config.num_kv_heads),
        VOCAB: RankShare(vocab.first, vocab.width, config.vocab_size),
        INNER: columns(config.intermediate_size),
        EXPERT: columns(0 if experts is None else experts.inner),
        SHARED: columns(0 if experts is None else experts.shared_inner),
    }


def shard_config(config: DecoderConfig, shares: Shares) -> DecoderConfig:
    """The sizes of a rank's layers; all but heads and columns stay."""
    experts = config.experts
    if experts is not None:
        inner, shared = shares[EXPERT].length, shares[SHARED].length
        experts = replace(experts, inner=inner, shared_inner=shared)
    return replace(
        config,
        experts=experts,
        num_q_heads=shares[HEADS].length,
        num_kv_heads=shares[KEYS].length,
        intermediate_size=shares[INNER].length,
    )


def check_shards(config: DecoderConfig, size: int, group: int) -> None:
    """Refuse a decoder that does not divide among ranks.

    Args:
        group: as of `shares_of`.

    Raises:
        ModelError: with the numbers.
    """
    heads, keys = config.num_q_heads, config.num_kv_heads
    if heads % size:
        raise ModelError(
            f"{RANKS_FLAG} {size}: the model's {heads} attention heads do not divide by it"
        )
    if keys % size and size % keys:
        raise ModelError(
            f"{RANKS_FLAG} {size}: the model's {keys} key heads neither divide by it nor into it"
        )
    experts = config.experts
    if experts is None or not all(experts.layers):
        _check_columns("the model's intermediate_size", config.intermediate_size, size, group)
    if experts is not None:
        _check_columns("the experts' inner size", experts.inner, size, group)
        _check_columns("the shared expert's inner size", experts.shared_inner, size, group)
    num_tiles = -(-config.vocab_size // TILE)
    if num_tiles < size:
        raise ModelError(
            f"{RANKS_FLAG} {size}: the model's vocabulary of {config.vocab_size} has {num_tiles} "
            f"tiles of {TILE}, fewer than ranks"
        )


def _check_columns(name: str, columns: int, size: int, group: int) -> None:
    if columns % (size * group) == 0:
        return
    if group == 1:
        raise ModelError(f"{RANKS_FLAG} {size}: {name} {columns} does not divide by it")
    num_groups = -(-columns // group)
    if num_groups < size:
        raise ModelError(
            f"{RANKS_FLAG} {size}: {name} {columns} is {num_groups} groups of {group} inputs that "
            "one scale stands for, fewer than ranks; give the unquantized model as MODEL"
        )
