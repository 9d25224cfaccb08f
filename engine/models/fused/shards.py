"""One rank's part of a fused decoder: which heads, columns and rows of its tensors.

QKV and gate-up products are divided by their outputs, heads being whole; the output and down
products by their inputs, so that their results are parts of a sum over ranks. Every expert is
divided as an MLP is. Of compressed attention the products that make heads are divided, and what
compresses is on every rank. Where there are more ranks than key heads, ranks share one. The LM head
is divided by tiles (`sampling.shard`); norms and the embedding are on every rank.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from engine.errors import ModelError
from engine.models.checkpoint.weights import Checkpoint, WeightSource
from engine.models.fused.decoder_config import DecoderConfig
from engine.models.quantized.reader import OwnedPart
from sampling.noise import TILE
from sampling.shard import RankExchange, VocabShard

FLAG = "--tensor-parallel-size"

_BY_OUTPUT = re.compile(
    r"\.(q_proj|k_proj|v_proj|q_b_proj|kv_b_proj|gate_proj|up_proj|w1|w3)\.(weight|bias)$"
)
_BY_INPUT = re.compile(r"\.(o_proj|down_proj|w2)\.weight$")
_OF_SUMS = re.compile(r"\.(o_proj|down_proj)\.bias$")
_OF_HEADS = re.compile(r"\.[qk]_norm\.weight$")
_OF_KEYS = re.compile(r"\.([kv]_proj|k_norm)\.")


def check_shards(config: DecoderConfig, size: int) -> None:
    """Refuse a decoder that does not divide among ranks.

    Raises:
        ModelError: with the numbers.
    """
    experts = config.experts
    if not config.is_plain or config.options.sinks or (experts is not None and experts.joined):
        raise ModelError(
            f"{FLAG} {size}: only layers like Llama's, with experts or without, are divided among "
            f"ranks; leave {FLAG} out"
        )
    heads, keys = config.num_q_heads, config.num_kv_heads
    if heads % size:
        raise ModelError(f"{FLAG} {size}: the model's {heads} attention heads do not divide by it")
    if keys % size and size % keys:
        raise ModelError(
            f"{FLAG} {size}: the model's {keys} key heads neither divide by it nor into it"
        )
    if config.intermediate_size % size:
        raise ModelError(
            f"{FLAG} {size}: the model's intermediate_size {config.intermediate_size} does not "
            "divide by it"
        )
    if experts is not None and (experts.inner % size or experts.shared_inner % size):
        raise ModelError(
            f"{FLAG} {size}: the experts' inner size {experts.inner} (shared: "
            f"{experts.shared_inner}) does not divide by it"
        )
    num_tiles = -(-config.vocab_size // TILE)
    if num_tiles < size:
        raise ModelError(
            f"{FLAG} {size}: the model's vocabulary of {config.vocab_size} has {num_tiles} tiles "
            f"of {TILE}, fewer than ranks"
        )


def shard_config(config: DecoderConfig, size: int) -> DecoderConfig:
    """The sizes of each rank's layers; all but heads and the MLP's width stay."""
    experts = config.experts
    if experts is not None:
        inner, shared = experts.inner // size, experts.shared_inner // size
        experts = replace(experts, inner=inner, shared_inner=shared)
    return replace(
        config,
        experts=experts,
        num_q_heads=config.num_q_heads // size,
        num_kv_heads=max(config.num_kv_heads // size, 1),
        intermediate_size=config.intermediate_size // size,
    )


class ShardedWeights:
    """A `WeightSource` that gives a rank its parts of another's tensors.

    Args:
        source: of whole tensors.
        config: of the whole model.
        exchange: the ranks; its messages are not used.
    """

    def __init__(self, source: WeightSource, config: DecoderConfig, exchange: RankExchange) -> None:
        self._source = source
        self._config = config
        self._rank, self._size = exchange.rank, exchange.size
        self._vocab = VocabShard.split(config.vocab_size, exchange)

    def fill(self, target: torch.Tensor, name: str) -> None:
        if name == "lm_head.weight":
            self._fill_part(target, name, 0, self._vocab.vocab_size, self._vocab.first)
        elif _BY_OUTPUT.search(name) or (self._config.whole_qk_norm and _OF_HEADS.search(name)):
            part, count = self._part(name)
            self._fill_part(target, name, 0, count * len(target), part * len(target))
        elif _BY_INPUT.search(name):
            width = target.shape[1]
            self._fill_part(target, name, 1, self._size * width, self._rank * width)
        else:
            self._source.fill(target, name)
            if _OF_SUMS.search(name) and self._rank > 0:
                target.zero_()  # a bias is added once

    def place(self, module: str) -> OwnedPart | None:
        """Which part of a module's weight is this rank's; None where every rank has all of it."""
        name = f"{module}.weight"
        if _BY_INPUT.search(name):
            return OwnedPart(False, self._rank, self._size)
        if _BY_OUTPUT.search(name):
            return OwnedPart(True, *self._part(name))
        return None

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._source.shape(name)

    def finish(self) -> None:
        self._source.finish()

    def _fill_part(self, target: torch.Tensor, name: str, dim: int, size: int, first: int) -> None:
        """Fill in what a tensor of `size` in a dimension has there from `first` on."""
        shape = list(target.shape)
        shape[dim] = size
        part = [slice(None)] * len(shape)
        part[dim] = slice(first, first + target.shape[dim])
        if isinstance(self._source, Checkpoint):
            self._source.fill_part(target, name, tuple(shape), tuple(part))
            return
        whole = target.new_empty(shape)  # random numbers are those of one rank
        self._source.fill(whole, name)
        target.copy_(whole[tuple(part)])

    def _part(self, name: str) -> tuple[int, int]:
        """Which part of a tensor divided by its outputs is this rank's, and of how many."""
        if not _OF_KEYS.search(name):
            return self._rank, self._size
        count = min(self._config.num_kv_heads, self._size)
        return self._rank * count // self._size, count
