"""Makes the drafter of a `SpeculativeConfig` for a target that is loaded."""

from __future__ import annotations

import msgspec
import torch

from engine.batch import RequestRows
from engine.config import ModelConfig
from engine.contracts.drafter import Drafter
from engine.contracts.model import CausalLM
from engine.errors import ModelError
from engine.models.loader import SPARE_POSITIONS, load_model
from engine.speculation.block import BlockDrafter
from engine.speculation.block_loader import load_block_head
from engine.speculation.cache import CacheShape, MakeAttention
from engine.speculation.draft_logits import DraftDraws
from engine.speculation.draft_model import DraftModelDrafter
from engine.speculation.eagle import EagleDrafter
from engine.speculation.eagle_loader import load_eagle_head
from engine.speculation.head_target import HeadTarget
from engine.speculation.mtp_loader import load_mtp_head
from engine.speculation.ngram import NgramDrafter
from engine.speculation.suffix import SuffixDrafter
from engine.speculative_config import BLOCK_METHODS, SpeculativeConfig
from sampling.rows import SamplingRows


def make_drafter(
    config: SpeculativeConfig,
    target_config: ModelConfig,
    target: CausalLM,
    rows: RequestRows,
    sampling_rows: SamplingRows,
    make_attention: MakeAttention,
) -> Drafter:
    """Make the drafter, its weights on the target's device, without a KV cache (see `allocate`).

    Args:
        target_config: the drafter's weights get its dtype, and are random where its are.
        rows, sampling_rows: the engine's; one row more than choices may hold.
        make_attention: the backend it makes must take `decode_len` up to k + 2.

    Raises:
        ModelError: a head or draft model cannot be read, or does not fit the target.
    """
    num_tokens, max_len = config.num_speculative_tokens, rows.token_ids.shape[1]
    if config.method == "ngram":
        return NgramDrafter(num_tokens, config.lookup_lengths, rows.token_ids)
    if config.method == "suffix":
        return SuffixDrafter(num_tokens, config.suffix_rules, rows.token_ids, rows.recent)
    cache_shape = CacheShape(rows.block_size, target.dtype, rows.device, make_attention)
    if config.method == "draft_model":
        model = _load_draft_model(config, target_config, target, rows.device)
        draws = DraftDraws(config.draft_source, num_tokens, sampling_rows)
        return DraftModelDrafter(model, num_tokens, draws, cache_shape)
    num_positions, shard = max_len + SPARE_POSITIONS, sampling_rows.shard
    of_target = HeadTarget(target_config, target, rows.device, num_positions, shard)
    if config.method in BLOCK_METHODS:
        loaded = load_block_head(config, of_target)
        draws = DraftDraws(config.draft_source, num_tokens, sampling_rows)
        return BlockDrafter(loaded, num_tokens, draws, cache_shape)
    is_own = config.method == "mtp"
    loaded_head = load_mtp_head(of_target) if is_own else load_eagle_head(config, of_target)
    draws = DraftDraws(config.draft_source, num_tokens, sampling_rows)
    return EagleDrafter(*loaded_head, num_tokens, draws, cache_shape)


def _load_draft_model(
    config: SpeculativeConfig,
    target_config: ModelConfig,
    target: CausalLM,
    device: torch.device,
) -> CausalLM:
    assert config.model is not None
    max_model_len = target_config.max_model_len or target.max_position
    own = msgspec.structs.replace(
        target_config,
        model=config.model,
        revision=config.revision,
        dtype=str(target.dtype).removeprefix("torch."),
        max_model_len=max_model_len,
        hf_overrides={},  # which are the target's
    )
    model = load_model(own, device)
    if model.state_specs(0):
        raise ModelError(
            f"{config.model}: layers of the draft model keep a state a row, which drafts from it "
            "would change; give a model of attention layers, or another method"
        )
    if model.vocab_size != target.vocab_size:
        raise ModelError(
            f"{config.model}: the draft model's vocabulary is {model.vocab_size}, "
            f"the target's {target.vocab_size}"
        )
    if model.max_position < max_model_len:
        raise ModelError(
            f"{config.model}: the draft model was made for {model.max_position} positions, "
            f"--max-model-len is {max_model_len}"
        )
    return model
