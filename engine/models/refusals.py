"""Refuses what a model cannot be served with, before its weights are loaded."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.expected import FolderConfig
from engine.models.families.table import TESTED_QUANTIZED, decoder_spec, unfused_reason
from engine.models.formats.scheme import Quantization
from engine.models.weights.shares import RANKS_FLAG, check_shards

logger = logging.getLogger(__name__)

FP8_CAPABILITY = (8, 9)
"""The least compute capability with float8 tensor cores."""

ROUTES_FLAG = "--enable-return-routed-experts"
ASKED_FOR = "--model-impl transformers was asked for"


def check_ranks(config: ModelConfig, size: int) -> None:
    """Refuse a model of which several ranks cannot compute a part each.

    Raises:
        ModelError: the message names what does not divide, or is not divided.
    """
    own = FolderConfig.read(config)
    quantization, reason = own.quantization, unfused_reason(own.hf_config)
    if config.model_impl == "transformers":
        reason = ASKED_FOR
    if reason is not None:
        flag = f"{RANKS_FLAG} {size}"
        raise _fused_alone(config, flag, "is divided among ranks", reason)
    group = 1 if quantization is None else quantization.input_group
    spec = decoder_spec(own.hf_config)
    check_shards(spec.divisions, spec.vocab_size, size, group)


def check_unfused(
    config: ModelConfig,
    reason: str | None,
    path: Path,
    quantization: Quantization | None,
    *,
    has_adapters: bool,
) -> None:
    """Refuse what only the fused decoder does, for a model that it does not run.

    Args:
        reason: why it does not; None where it was not wanted.
        path: of config.json.

    Raises:
        ModelError: the message names the flag.
    """
    why = reason or ASKED_FOR
    if config.model_impl == "fused":
        raise ModelError(
            f"--model-impl fused: the fused decoder does not run {config.model!r}: {why}; "
            "--model-impl auto runs it on transformers' modules"
        )
    if quantization is not None:
        raise ModelError(
            f"{path}: quantized weights ({quantization.name}) are read by the fused decoder alone, "
            f"which does not run {config.model!r} here: {why}; give the unquantized model as MODEL"
        )
    asked = (
        (f"--quantization {config.quantization}", config.quantization is not None, "quantizes"),
        ("--batch-invariant", config.batch_invariant, "promises bits"),
        ("--enable-lora", has_adapters, "serves adapters"),
        (ROUTES_FLAG, config.returns_routes, "knows which experts tokens take"),
    )
    for flag, is_asked, ability in asked:
        if is_asked:
            raise _fused_alone(config, flag, ability, why)


def _fused_alone(config: ModelConfig, flag: str, ability: str, why: str) -> ModelError:
    return ModelError(
        f"{flag}: only the fused decoder {ability}, and it does not run {config.model!r} here: "
        f"{why}; leave {flag.split()[0]} out"
    )


def check_quantization(
    config: ModelConfig, own: FolderConfig, quantization: Quantization | None, device: torch.device
) -> None:
    """Refuse to round what is rounded, and float8 products on a GPU without them."""
    flag = f"--quantization {config.quantization}"
    lack = fp8_lack(device)
    model_type = own.hf_config.model_type
    if quantization is None:
        if config.quantization is None:
            return
        if lack:
            raise ModelError(f"{flag} {lack}; leave it out")
        _warn_if_untested(flag, model_type, device)
        return
    is_fp8 = any(scheme.is_fp8 for scheme in quantization.schemes)
    if config.quantization is not None and not is_fp8:
        raise ModelError(
            f"{flag} rounds weights that are not quantized, and {own.path.parent} is "
            f"({quantization.name}); leave it out"
        )
    name = f"{own.path}: quantization_config ({quantization.name})"
    if is_fp8 and lack:
        raise ModelError(f"{name} {lack}; give a model in bfloat16 or 4 bits")
    _warn_if_untested(name, model_type, device)


def fp8_lack(device: torch.device) -> str | None:
    """Why a device cannot compute with float8, to be put after the flag that wants it."""
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability >= FP8_CAPABILITY:
        return None
    major, minor = capability
    return (
        f"needs a GPU of compute capability 8.9 or more, and {torch.cuda.get_device_name(device)} "
        f"has {major}.{minor}"
    )


def _warn_if_untested(what: str, model_type: str, device: torch.device) -> None:
    """Warn of quantized layers of which no test has run the like on a GPU."""
    if device.type == "cuda" and model_type not in TESTED_QUANTIZED:
        logger.warning(
            "%s: the kernels of such a model were tested in part on a GPU: compare its logprobs "
            "with the unquantized model's",
            what,
        )
