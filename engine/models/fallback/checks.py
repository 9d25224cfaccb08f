"""Refuses models by their config before anything is loaded, and limits their positions."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelError
from engine.models.weights.folder import POSITION_LIMITS

EXPRESSIBLE_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
UNBOUNDED_POSITIONS = 2048
"""Context of a model whose config names no limit, unless --max-model-len does."""


def refuse_inexpressible(config: Any) -> None:
    """Refuse a model whose config shows that it is no decoder over paged attention.

    Raises:
        ModelError: naming the architecture and the feature.
    """
    architecture = (config.architectures or [config.model_type])[0]
    feature = _inexpressible_feature(config, config.get_text_config(decoder=True), architecture)
    if feature is not None:
        raise ModelError(f"{architecture} is not supported: {feature}")


def _inexpressible_feature(config: Any, text: Any, architecture: str) -> str | None:
    from transformers.models.auto.modeling_auto import (  # seconds to import, for every model
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    if config.is_encoder_decoder:
        return "encoder-decoder architecture"
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    is_remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if not is_remote and (known is None or (config.architectures and architecture != known)):
        return "not a causal language model"
    if getattr(text, "add_cross_attention", False):
        return "cross-attention"
    if getattr(text, "is_causal", True) is False:
        return "bidirectional attention"
    for kind in getattr(text, "layer_types", None) or ():
        if kind not in EXPRESSIBLE_LAYERS:
            return f"layers of type {kind!r}"
    if getattr(text, "index_topk", None):
        return "sparse attention by a token indexer"
    return None


def position_limit(config: Any, max_model_len: int | None) -> int:
    """The number of positions that can be served.

    Raises:
        ModelError: longrope, whose angles would depend on how long the sequence is going to be.
    """
    text = config.get_text_config(decoder=True)
    named = [value for name in POSITION_LIMITS if (value := getattr(text, name, None))]
    limit: int = named[0] if named else max_model_len or UNBOUNDED_POSITIONS
    original = _longrope_limit(text)
    if original is None or original >= limit:
        return limit
    if max_model_len is None or max_model_len > original:
        raise ModelError(
            f"longrope beyond {original} positions is not supported: "
            f"set --max-model-len to {original} or less"
        )
    return original


def _longrope_limit(text: Any) -> int | None:
    rope = getattr(text, "rope_parameters", None) or {}
    for parameters in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if parameters.get("rope_type") == "longrope":
            original: int = parameters.get("original_max_position_embeddings") or (
                text.original_max_position_embeddings
            )
            return original
    return None
