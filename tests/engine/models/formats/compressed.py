"""Tiny models that compressed-tensors quantises and writes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)

from tests.engine.models.formats.packers import WIDE
from tests.engine.models.serving import expected, some_ids, write_tiny

KEY, VALUE = 2.0**-9, 2.0**-8
"""Powers of two, which are not rounded up, and so small that keys and values are cut off."""
IGNORED = ["lm_head", "re:.*gate$"]
MODELS: dict[str, hf.PreTrainedConfig] = {
    "llama": hf.LlamaConfig(**WIDE),
    "phi3": hf.Phi3Config(**WIDE),
    "gemma3": hf.Gemma3TextConfig(**WIDE, head_dim=16, query_pre_attn_scalar=16, sliding_window=11),
    "mixtral": hf.MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2),
}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}


def scheme(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> QuantizationScheme:
    return QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**weights),
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
    )


BY_GROUP = scheme(
    {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
)
BY_CHANNEL = scheme(
    FLOAT8 | {"strategy": "channel"}, FLOAT8 | {"strategy": "token", "dynamic": True}
)
BY_TENSOR = scheme(FLOAT8 | {"strategy": "tensor"}, FLOAT8 | {"strategy": "tensor"})


def write_compressed(
    model: hf.PreTrainedConfig,
    scheme: QuantizationScheme,
    layout: str,
    kv: dict[str, Any] | None,
    folder: Path,
) -> torch.Tensor:
    """Quantise and write a random model; returns the logits of its own run."""
    reference = write_tiny(model, folder, spread=0.15)
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=layout,
        ignore=IGNORED,
        kv_cache_scheme=None if kv is None else QuantizationArgs(**kv),
    )
    if kv is not None:
        name_the_cache_as_before(reference)
    apply_quantization_config(reference, config)
    for module in reference.modules():
        if hasattr(module, "k_scale"):
            module.k_scale.data.fill_(KEY)
            module.v_scale.data.fill_(VALUE)
        if hasattr(module, "weight_scale"):
            calibrate(module, scheme.weights)
    logits = expected(reference, some_ids())
    compressor = ModelCompressor.from_pretrained_model(reference)
    compressor.compress_model(reference)
    reference.save_pretrained(folder)
    compressor.update_config(folder)
    return logits


def name_the_cache_as_before(reference: torch.nn.Module) -> None:
    """Let compressed-tensors find the caches of a model of transformers 5.24 or later.

    It rounds keys and values where an attention's `forward` takes `past_key_values`, which
    transformers calls `cache` since 5.24; it leaves others unrounded without a word.
    """
    for module in reference.modules():
        parameters = signature(module.forward).parameters
        if type(module).__name__.endswith("Attention") and "cache" in parameters:
            module.forward = renaming(module.forward)


def renaming(forward: Callable[..., Any]) -> Callable[..., Any]:
    def renamed(*args: Any, past_key_values: Any = None, cache: Any = None, **rest: Any) -> Any:
        assert cache is None, "the reference runs without a cache of its own"
        return forward(*args, cache=past_key_values, **rest)

    return renamed


def calibrate(module: Any, args: Any) -> None:
    weight, scale = module.weight.data, module.weight_scale
    if args.type == "int":
        scale.data.copy_(weight.view(len(weight), -1, args.group_size).abs().amax(-1) / 7.5)
        return
    largest = weight.abs().amax() if args.strategy == "tensor" else weight.abs().amax(1)
    scale.data.copy_((largest / 448).reshape(scale.shape))
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(0.02)
