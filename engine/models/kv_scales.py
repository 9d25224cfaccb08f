"""Reads the scales that a checkpoint has for keys and values in float8.

A stored number times its scale is the key or value, whichever tool wrote it. Names differ, of a
layer's attention:

    k_scale, v_scale                                  compressed-tensors, AutoFP8
    attn.k_scale, attn.v_scale                        checkpoints that vLLM wrote
    k_proj.output_scale, v_proj.output_scale          compressed-tensors before 0.9
    k_proj.k_scale, v_proj.v_scale                    ModelOpt
    kv_scale, attn.kv_scale                           AutoFP8 before that: one for both

They are rounded up to powers of two, as the scales of `KVCache` are: the range for which they were
measured is kept, and float8's numbers lie equally dense below any scale.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import ModelConfig
from engine.contracts.attention import AttentionSpec
from engine.errors import ModelError
from engine.models.weights.folder import model_folder, read_json
from engine.models.weights.sources import Checkpoint
from sampling.device.ranks import LoneRank, RankExchange

logger = logging.getLogger(__name__)

ATTENTION = "model.layers.{}.self_attn"
NAMES = (
    ("k_scale", "attn.k_scale", "k_proj.output_scale", "k_proj.k_scale"),
    ("v_scale", "attn.v_scale", "v_proj.output_scale", "v_proj.v_scale"),
)
"""Of the keys' scale and of the values'."""
OF_BOTH = ("kv_scale", "attn.kv_scale")
REMEDY = "leave --kv-cache-dtype out, or write the checkpoint anew"


def stored_kv_scales(
    config: ModelConfig,
    specs: Sequence[AttentionSpec],
    device: torch.device,
    exchange: RankExchange | None = None,
) -> list[torch.Tensor | None]:
    """The scales of a checkpoint for this rank's part of `specs`.

    Returns:
        Of each layer float32 [2, kv_heads], powers of two; None of one without, and of all where
        keys and values are stored in another form than they are scaled for: compressed, or not in
        float8.

    Raises:
        ModelError: a scale is not a positive number, has another shape, or lacks its fellow.
    """
    if config.load_format == "dummy":
        return [None] * len(specs)
    folder = model_folder(config.model, config.revision)
    content = read_json(folder / "config.json")
    if not _are_for_float8(content):
        return [None] * len(specs)
    source = Checkpoint(folder)
    scales = [
        _of_layer(source, index, spec.num_kv_heads, exchange or LoneRank())
        for index, spec in enumerate(specs)
    ]
    if any(own is not None for own in scales):
        logger.info("keys and values have the checkpoint's scales, up to powers of two")
    return [None if own is None else own.to(device) for own in scales]


def _are_for_float8(content: dict[str, Any]) -> bool:
    if content.get("kv_lora_rank") is not None:
        return False  # of the compressed vectors; ours are whole
    scheme = (content.get("quantization_config") or {}).get("kv_cache_scheme")
    if not isinstance(scheme, dict):
        return True
    kind = (scheme.get("type"), scheme.get("num_bits"), scheme.get("symmetric", True))
    return kind == ("float", 8, True)


def _of_layer(
    source: Checkpoint, layer: int, num_heads: int, exchange: RankExchange
) -> torch.Tensor | None:
    found = [
        [name for name in _full(layer, (*names, *OF_BOTH)) if source.shape(name) is not None]
        for names in NAMES
    ]
    if not any(found):
        return None
    for names, wanted in zip(found, NAMES, strict=True):
        if not names:
            missing = next(_full(layer, wanted))
            raise ModelError(
                f"{_folder(source, found)}: tensor {missing!r} is missing, which the other scales "
                f"of float8 keys and values go with; {REMEDY}"
            )
    return torch.stack([_heads(source, names[0], num_heads, exchange) for names in found])


def _full(layer: int, names: Sequence[str]) -> Iterator[str]:
    return (f"{ATTENTION.format(layer)}.{name}" for name in names)


def _folder(source: Checkpoint, found: list[list[str]]) -> Path:
    """The file of the scale that is there."""
    return source.place(next(names[0] for names in found if names))


def _heads(source: Checkpoint, name: str, num_heads: int, exchange: RankExchange) -> torch.Tensor:
    """Scales [num_heads] of this rank's heads, of a tensor with one for all or one a head."""
    scales, size = source.stored(name).float().flatten(), exchange.size
    if not bool((scales.isfinite() & (scales > 0)).all()):
        raise ModelError(
            f"{source.place(name)}: tensor {name!r} holds a scale that is not a positive number; "
            f"{REMEDY}"
        )
    count = len(scales)
    if count == 1:
        scales = scales.expand(num_heads)
    elif count == num_heads * size or (num_heads == 1 < count and size % count == 0):
        first = exchange.rank * (count // num_heads) // size * num_heads
        scales = scales[first : first + num_heads]
    else:
        raise ModelError(
            f"{source.place(name)}: tensor {name!r} has {count} scales, attention asks for 1 or "
            f"one of each key head; {REMEDY}"
        )
    mantissas, exponents = torch.frexp(scales)
    return torch.exp2((exponents - (mantissas == 0.5).int()).float())
