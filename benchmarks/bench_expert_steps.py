"""Decode steps of a shape with experts, beside the times in which their bytes could be read.

    python -m benchmarks.bench_expert_steps

The layers and the head run alone in a CUDA graph, with random weights in bfloat16 and in float8.
Prints a line a measurement.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import AutoConfig

from benchmarks.bench_experts import BLOCK_SIZE, DEVICE, DTYPE, HIDDEN, SHAPE, graph_us
from benchmarks.bench_sampling import copy_gb_per_s
from benchmarks.figures import Figure, figure
from benchmarks.shapes import EXPERTS, QWEN3, cache_bytes_per_token, expert_step_bytes
from engine.contracts.attention import AttentionSpec
from engine.contracts.heads import Heads, Rotation
from engine.contracts.model import ModelInputs
from engine.kernels.decode.attention import paged_decode_product
from engine.kernels.decode.product import Product
from engine.kernels.decode.split_keys import DecodeScratch
from engine.memory.pages import KVCache
from engine.models.decoder import Decoder
from engine.models.families.table import decoder_spec
from engine.models.formats.reader import WeightReader
from engine.models.weights.sources import DummyWeights

STEPS = ((1, 256), (2, 256), (8, 256), (64, 192), (256, 192))
"""Rows, and tokens of each in the cache."""
MOST_MS: dict[tuple[str, int], tuple[float, float | None]] = {
    ("bf16", 1): (2.1, 1.8),
    ("fp8", 1): (2.5, None),
}
MOST_OVER_BOUND = {("bf16", 256): 1.6}


@dataclass(frozen=True)
class StepTime:
    """What a decode step takes.

    Attributes:
        ms: milliseconds. bound_ms: those in which its bytes could be read.
    """

    rows: int
    context: int
    ms: float
    bound_ms: float


@dataclass(frozen=True)
class Decoding:
    """The `LayerAttention` of rows that bring one token each."""

    specs: Sequence[AttentionSpec]
    cache: KVCache
    tables: torch.Tensor
    seq_lens: torch.Tensor
    slots: torch.Tensor
    scratch: DecodeScratch

    @classmethod
    def of(cls, specs: Sequence[AttentionSpec], rows: int, context: int) -> Decoding:
        """Rows of `context` tokens, each in blocks of its own."""
        width = -(-context // BLOCK_SIZE)
        cache = KVCache(specs, rows * width + 1, BLOCK_SIZE, DTYPE, DEVICE)
        tables = 1 + torch.arange(rows * width, device=DEVICE).view(rows, width)
        offset = (context - 1) % BLOCK_SIZE
        slots = tables[:, -1] * BLOCK_SIZE + offset
        seq_lens = torch.full((rows,), context, dtype=torch.int32, device=DEVICE)
        scratch = DecodeScratch(list(specs), rows, DEVICE)
        return cls(specs, cache, tables.int(), seq_lens, slots, scratch)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("fused layers give their product")

    def attend_product(
        self, layer: int, qkv: torch.Tensor, heads: Heads, rotation: Rotation
    ) -> torch.Tensor:
        spec = self.specs[layer]
        out = qkv.new_empty((len(qkv), spec.num_q_heads, spec.head_dim))
        paged_decode_product(
            spec,
            Product(qkv, heads.norm, rotation.table, heads.eps, heads.num_between),
            rotation.positions,
            self.slots,
            self.cache.layers[layer],
            self.tables,
            self.seq_lens,
            out,
            self.scratch,
        )
        return out


def measurements(gb_per_s: float, *, fp8: bool) -> Iterator[StepTime]:
    """Steps of the whole shape, to their most likely tokens.

    Args:
        fp8: weights are in float8, but for the embedding and the head.
    """
    fields = QWEN3 | EXPERTS[SHAPE]
    config = AutoConfig.for_model(**fields)
    source = DummyWeights(config.initializer_range, DEVICE)
    reader = WeightReader.of(source, DTYPE, DEVICE, fp8=fp8)
    model = Decoder(decoder_spec(config), reader, 4096)
    for rows, context in STEPS:
        attention = Decoding.of(model.attention_specs, rows, context)
        ids = torch.randint(0, model.vocab_size, (2, rows), device=DEVICE, dtype=torch.int32)
        positions = torch.full((rows,), context - 1, device=DEVICE)

        def call(
            index: int,
            ids: torch.Tensor = ids,
            positions: torch.Tensor = positions,
            attention: Decoding = attention,
        ) -> torch.Tensor:
            inputs = ModelInputs(ids[index], positions, attention)
            return model.logits(model.forward(inputs).final).argmax(-1)

        num_bytes = _step_bytes(rows, context, 2 * HIDDEN * model.vocab_size if fp8 else None)
        ms = graph_us(call, 2) / 1e3
        yield StepTime(rows, context, round(ms, 3), round(num_bytes / gb_per_s / 1e6, 3))


def _step_bytes(rows: int, context: int, head: int | None) -> float:
    """Bytes that a step reads; `head` are those of the head where the rest is in float8."""
    num_bytes = float(expert_step_bytes(SHAPE, rows))
    if head is not None:
        num_bytes = (num_bytes - head) / 2 + head
    return num_bytes + rows * context * cache_bytes_per_token(SHAPE)


@torch.inference_mode()
def figures() -> Iterator[Figure]:
    """Milliseconds of each step, and how many times its bound they are."""
    gb_per_s = copy_gb_per_s()
    for name in ("bf16", "fp8"):
        for step in measurements(gb_per_s, fp8=name == "fp8"):
            print(name, step, flush=True)
            key, what = (name, step.rows), f"{SHAPE} {name}, step of {step.rows} rows"
            (most_ms, aim), over = MOST_MS.get(key, (None, None)), round(step.ms / step.bound_ms, 2)
            made = figure(what, step.ms, "ms", "<=", most_ms, step.bound_ms, aim)
            made_by = {"command": "python -m benchmarks.bench_expert_steps", "check": ""}
            yield made | made_by
            most = MOST_OVER_BOUND.get(key)
            yield figure(f"{what}, over its bytes", over, "x", "<=", most, 1.0) | made_by
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    for _ in figures():
        pass
