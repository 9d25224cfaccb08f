"""Loads an EAGLE head from its folder, or says which of its sizes do not fit the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.errors import ModelError
from engine.models.families.table import decoder_spec, unfused_layer_reason
from engine.models.weights.sources import Checkpoint, DummyWeights
from engine.models.weights.stored import Unread, WeightSource
from engine.speculation.draft_vocabulary import MASK, draft_columns
from engine.speculation.eagle_heads import Eagle1Head, Eagle3Head, EagleHead, EagleHeadSource
from engine.speculation.head_target import HeadTarget
from engine.speculative_config import SpeculativeConfig

SHARED = frozenset({"embed_tokens.weight", "lm_head.weight"})
"""Tensors of the target that files of EAGLE-1 heads may repeat."""
HEADS = ("llama", "mistral", "qwen2", "qwen3")
"""Families of whose layers an EAGLE head may have one."""


def load_eagle_head(
    config: SpeculativeConfig, of_target: HeadTarget
) -> tuple[EagleHead, torch.Tensor]:
    """Load the EAGLE head of an "eagle" or "eagle3" configuration, and make its `rope_table`.

    Raises:
        ModelError: it cannot be read or does not fit; the message has the sizes.
    """
    target, device = of_target.model, of_target.device
    folder, hf_config = of_target.head_folder(config)
    _check_layer(folder, hf_config)
    spec = decoder_spec(hf_config)
    _check_size(folder, "vocabulary", spec.vocab_size, target.vocab_size)
    tensors: WeightSource
    if of_target.is_dummy:
        tensors = DummyWeights(spec.initializer_range, device)
    else:
        names = SHARED if config.method == "eagle" else frozenset({MASK})
        tensors = Checkpoint(folder, Unread(names))
    has_embedding = config.method == "eagle3" and tensors.shape("embed_tokens.weight") is not None
    if not has_embedding:
        _check_size(folder, "hidden size", spec.hidden_size, target.hidden_size)
    source = EagleHeadSource(spec, tensors, target, device, of_target.shard)
    with torch.no_grad():
        if config.method == "eagle":
            eagle_head: EagleHead = Eagle1Head(source)
        else:
            eagle_head = _eagle3_head(folder, hf_config, source)
    tensors.finish()
    return eagle_head, of_target.angles(source.attention.rotation)


def _check_layer(folder: Path, config: Any) -> None:
    if config.model_type not in HEADS:
        kind = config.model_type
        raise ModelError(f"{folder}: EAGLE heads of model_type {kind!r} are not supported")
    reason = unfused_layer_reason(config)
    if getattr(config, "norm_before_residual", False):
        reason = "norm_before_residual true"
    if config.num_hidden_layers != 1:
        reason = f"num_hidden_layers {config.num_hidden_layers}, not 1"
    if reason is not None:
        raise ModelError(f"{folder}: an EAGLE head with {reason} is not supported")


def _check_size(folder: Path, what: str, size: int, target_size: int) -> None:
    if size != target_size:
        raise ModelError(f"{folder}: the EAGLE head's {what} is {size}, the target's {target_size}")


def _eagle3_head(folder: Path, config: Any, source: EagleHeadSource) -> EagleHead:
    if not source.target.num_feature_layers:
        raise ModelError(
            "--speculative-config: method 'eagle3' reads the outputs of the target's layers, which "
            "a target on transformers' modules does not give; use another method"
        )
    layers = _feature_layers(folder, config, source.target.num_feature_layers)
    fan_in, width = source.tensors.shape("fc.weight"), len(layers) * source.target.hidden_size
    if fan_in is not None and fan_in[1] != width:
        raise ModelError(
            f"{folder}: the EAGLE head takes features of size {fan_in[1]}, those of "
            f"{len(layers)} layers of the target have {width}"
        )
    vocab_size = source.spec.vocab_size
    num_drafted = getattr(config, "draft_vocab_size", None) or vocab_size
    columns = draft_columns(folder, source.tensors, source.reader, num_drafted, vocab_size)
    return Eagle3Head(source, layers, num_drafted, columns)


def _feature_layers(folder: Path, config: Any, num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs the EAGLE head reads: one low, one in the middle, one high."""
    named = (getattr(config, "eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
    layers = tuple(named or (1, num_layers // 2 - 1, num_layers - 4))
    if not all(0 <= layer < num_layers for layer in layers):
        raise ModelError(
            f"{folder}: the EAGLE head reads layers {list(layers)}, the target has {num_layers}"
        )
    return layers
