"""Tiny random models written by transformers, and rows served from a paged cache step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.attention.plain import PlainAttention
from engine.config import ModelConfig
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import CausalLM, ModelInputs
from engine.kernels.lora.groups import ActiveAdapters, TokenGroups
from engine.memory.pages import KVCache
from engine.models.loader import load_model

VOCAB = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 20,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
}
LENGTH = 70
# Steps of (row, first token, last token): whole prompts, chunks of 5 and 16, decode steps, rows
# that join, pause and change places.
SCHEDULE = (
    [(0, 0, 16), (1, 0, 5)],
    [(0, 16, 32), (2, 0, 40), (1, 5, 6)],
    [(0, 32, 33), (2, 40, 41), (1, 6, 7)],
    [(1, 7, 23), (0, 33, 34)],
    [(0, 34, 39), (1, 23, 28), (2, 41, 46)],
    [(2, 46, 62), (0, 39, 70), (1, 28, 29)],
    [(1, 29, 70), (2, 62, 63)],
    [(2, 63, 70)],
)


def write_tiny(config: PreTrainedConfig, folder: Path, *, spread: float = 0.25, **save: Any) -> Any:
    """Save a random float32 model of a config; returns transformers' own.

    Args:
        spread: standard deviation of the weights; so many sizes ** -0.5 keep numbers near 1.
    """
    torch.manual_seed(0)
    model = new_model(config).float().eval()
    with torch.no_grad():  # wide enough that attention is far from uniform
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            is_scale = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1.0 + 0.2 * noise if is_scale else spread * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # zeros in a new model
                buffer.copy_(0.2 * torch.randn_like(buffer))
            if name.endswith("layer_scalar"):  # ones in a new model
                buffer.copy_(1.0 + 0.2 * torch.randn_like(buffer))
    model.save_pretrained(folder, **save)
    return model


def new_model(config: PreTrainedConfig) -> Any:
    """transformers' model of a config, with new weights."""
    if config.model_type == "mistral4":  # auto classes know it by its images alone
        return transformers.Mistral4ForCausalLM._from_config(config, attn_implementation="eager")
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def some_ids(num_rows: int = 3) -> torch.Tensor:
    return torch.randint(2, VOCAB, (num_rows, LENGTH), generator=torch.Generator().manual_seed(1))


def load(folder: Path, on: str = "cpu", **settings: Any) -> CausalLM:
    return load_model(ModelConfig(model=str(folder), **settings), torch.device(on))


class PagedRows:
    """Rows over a paged cache whose blocks are dealt out of order."""

    def __init__(
        self,
        model: CausalLM,
        num_rows: int,
        block_size: int = 4,
        on: str = "cpu",
        scales: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self._model, self._block_size, self._device = model, block_size, torch.device(on)
        width = -(-LENGTH // block_size)
        num_blocks = num_rows * width + 1
        specs = model.attention_specs
        cache = KVCache(specs, num_blocks, block_size, model.dtype, self._device, scales)
        order = np.random.default_rng(0).permutation(num_blocks - 1) + 1
        self._tables = order.astype(np.int32).reshape(num_rows, width)
        self.attention = PlainAttention(specs, cache)

    def step(
        self,
        ids: torch.Tensor,
        parts: list[tuple[int, int, int]],
        active: ActiveAdapters | None = None,
        groups: TokenGroups | None = None,
    ) -> list[torch.Tensor]:
        """Logits [tokens, vocab] of each (row, first token, last token); a padding row besides.

        Args:
            groups: of the tokens' adapters, while `active` is what the model reads.
        """
        lengths = [last - first for _, first, last in parts]
        inputs, positions = self.inputs(parts)
        input_ids = torch.cat([ids[row, first:last] for row, first, last in parts])
        self.attention.begin(inputs)
        with (active or ActiveAdapters()).using(groups):
            own = input_ids.to(self._device, torch.int32)
            hidden = self._model.forward(ModelInputs(own, positions, self.attention))
            logits = self._model.logits(hidden.final)
        return list(torch.split(logits.cpu(), lengths))

    def inputs(self, parts: list[tuple[int, int, int]]) -> tuple[AttentionInputs, torch.Tensor]:
        """A step's inputs and positions [T]."""

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(self._device)

        lengths = [last - first for _, first, last in parts]
        rows = [row for row, _, _ in parts]
        starts = np.concatenate([[0], np.cumsum([*lengths, 0])]).astype(np.int32)
        seq_lens = np.array([*(last for *_, last in parts), 0], dtype=np.int32)
        positions = np.concatenate([np.arange(first, last) for _, first, last in parts])
        blocks = self._tables[np.repeat(rows, lengths), positions // self._block_size]
        tables = np.zeros((len(parts) + 1, self._tables.shape[1]), dtype=np.int32)
        tables[:-1] = self._tables[rows]
        slots = blocks.astype(np.int64) * self._block_size + positions % self._block_size
        inputs = AttentionInputs(
            query_starts=tensor(starts),
            query_starts_np=starts,
            seq_lens=tensor(seq_lens),
            block_tables=tensor(tables),
            slots=tensor(slots),
            seq_lens_np=seq_lens,
            max_query_len=max(lengths),
        )
        return inputs, tensor(positions)


@torch.inference_mode()
def serve(
    model: CausalLM,
    ids: torch.Tensor,
    on: str = "cpu",
    scales: Sequence[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Logits [3, LENGTH, vocab] of ids [3, LENGTH], served by SCHEDULE; scales: as of `KVCache`."""
    rows = PagedRows(model, len(ids), on=on, scales=scales)
    logits = torch.full((*ids.shape, model.vocab_size), torch.nan)
    for parts in SCHEDULE:
        for (row, first, last), part in zip(parts, rows.step(ids, parts), strict=True):
            logits[row, first:last] = part
    return logits


@torch.inference_mode()
def expected(reference: Any, ids: torch.Tensor) -> torch.Tensor:
    """transformers' logits of the whole rows at once."""
    logits: torch.Tensor = reference(input_ids=ids, use_cache=False).logits
    assert logits.abs().max() > 1.0  # a difference of 1e-4 says something
    return logits


def assert_same_logits(model: CausalLM, reference: Any) -> None:
    ids = some_ids()
    torch.testing.assert_close(serve(model, ids), expected(reference, ids), rtol=0, atol=1e-4)


def mean_kl(logits: torch.Tensor, wanted: torch.Tensor, *, share: float = 1.0) -> float:
    """The mean of KL(wanted || logits) over positions, the lowest `share` of them."""
    p, q = wanted.double().log_softmax(-1), logits.double().log_softmax(-1)
    by_position = (p.exp() * (p - q)).sum(-1).sort().values
    return float(by_position[: int(share * len(by_position))].mean())
