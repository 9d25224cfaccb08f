"""Loads the model of a `ModelConfig`: fused modules where they fit, else transformers'."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.adapters.stacks import AdapterStacks
from engine.config import ModelConfig
from engine.contracts.attention import AttentionSpec
from engine.contracts.model import CausalLM
from engine.errors import ModelError
from engine.memory.routes import ExpertRoutes
from engine.models.decoder import Decoder
from engine.models.fallback.checks import position_limit
from engine.models.families.table import TESTED_QUANTIZED, decoder_spec, unfused_reason
from engine.models.formats.config import quantization as quantization_of
from engine.models.formats.reader import WeightReader
from engine.models.formats.scheme import Quantization
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.model_config import read_config
from engine.models.reference import Reference
from engine.models.weights.folder import eos_token_ids as eos_token_ids_of
from engine.models.weights.folder import model_folder, read_json
from engine.models.weights.shares import RANKS_FLAG, check_shards
from engine.models.weights.sources import Checkpoint, DummyWeights
from engine.models.weights.stored import WeightSource
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)

SPARE_POSITIONS = 64
"""Number of rotations past the context: a step in flight when a row ends asks for some of them."""

FP8_CAPABILITY = (8, 9)
"""The least compute capability with float8 tensor cores."""

ROUTES_FLAG = "--enable-return-routed-experts"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    config: ModelConfig,
    device: torch.device,
    exchange: RankExchange | None = None,
    reference: Reference | None = None,
    adapters: AdapterStacks | None = None,
) -> CausalLM:
    """Load the model of a folder or hub id, its weights on `device`.

    Args:
        exchange: the ranks of which this loads its part; None is one rank, with all of it.
        reference: is filled in where the model's weights are quantised.
        adapters: gets room beside the model's products; None where none are served.

    Raises:
        ModelError: it cannot be served; the message names the file, field or feature.
    """
    folder = model_folder(config.model, config.revision, weights=config.load_format != "dummy")
    hf_config = read_config(
        folder, config.trust_remote_code, may_be_quantized=True, overrides=config.hf_overrides
    )
    path = folder / "config.json"
    quantization = quantization_of(read_json(path), path)
    dtype = resolve_dtype(config, hf_config, device)
    reason = unfused_reason(hf_config)
    if exchange is not None and exchange.size > 1:
        check_ranks(config, exchange.size)
    if config.model_impl == "fused" and reason is not None:
        raise ModelError(
            f"--model-impl fused: the fused decoder does not run {config.model!r}: {reason}; "
            "--model-impl auto runs it on transformers' modules"
        )
    if reason is None and config.model_impl != "transformers":
        _check_quantization(config, quantization, folder, hf_config, device)
        if reference is not None:
            _describe(reference, config, quantization, dtype)
        if reference is not None and not reference.scheme:
            reference = None
        return _fused_decoder(
            config, hf_config, folder, dtype, device, quantization, exchange, reference, adapters
        )
    if quantization is not None:
        why = reason or "--model-impl transformers was asked for"
        raise ModelError(
            f"{path}: quantized weights ({quantization.name}) are read by the fused decoder alone, "
            f"which does not run {config.model!r} here: {why}; give the unquantized model as MODEL"
        )
    if config.quantization is not None:
        why = reason or "--model-impl transformers was asked for"
        raise ModelError(
            f"--quantization {config.quantization}: only the fused decoder quantizes, and it does "
            f"not run {config.model!r} here: {why}; leave --quantization out"
        )
    if config.batch_invariant:
        why = reason or "--model-impl transformers was asked for"
        raise ModelError(
            f"--batch-invariant: only the fused decoder promises bits, and it does not run "
            f"{config.model!r} here: {why}; leave --batch-invariant out"
        )
    if adapters is not None:
        why = reason or "--model-impl transformers was asked for"
        raise ModelError(
            f"--enable-lora: only the fused decoder serves adapters, and it does not run "
            f"{config.model!r} here: {why}; leave --enable-lora out"
        )
    if config.returns_routes:
        why = reason or "--model-impl transformers was asked for"
        raise ModelError(
            f"{ROUTES_FLAG}: only the fused decoder knows which experts tokens take, and it does "
            f"not run {config.model!r} here: {why}; leave {ROUTES_FLAG} out"
        )
    from engine.models.fallback.model import load_fallback_model  # seconds to import

    return load_fallback_model(config, hf_config, folder, dtype, device)


def check_ranks(config: ModelConfig, size: int) -> None:
    """Refuse a model of which several ranks cannot compute a part each, before any is loaded.

    Raises:
        ModelError: the message names what does not divide, or is not divided.
    """
    folder = model_folder(config.model, config.revision, weights=False)
    hf_config = read_config(
        folder, config.trust_remote_code, may_be_quantized=True, overrides=config.hf_overrides
    )
    path = folder / "config.json"
    quantization = quantization_of(read_json(path), path)
    reason = unfused_reason(hf_config)
    if config.model_impl == "transformers":
        reason = "--model-impl transformers was asked for"
    if reason is not None:
        raise ModelError(
            f"{RANKS_FLAG} {size}: only the fused decoder is divided among ranks, and it does not "
            f"run {config.model!r} here: {reason}; leave {RANKS_FLAG} out"
        )
    group = 1 if quantization is None else quantization.input_group
    spec = decoder_spec(hf_config)
    check_shards(spec.divisions, spec.vocab_size, size, group)


def max_position(config: ModelConfig) -> int:
    """The positions that the model was made for, read from its config, without its weights."""
    folder = model_folder(config.model, config.revision, weights=False)
    hf_config = read_config(
        folder, config.trust_remote_code, may_be_quantized=True, overrides=config.hf_overrides
    )
    return position_limit(hf_config, config.max_model_len)


class ExpectedModel(NamedTuple):
    """What a model's config says of it, without the weights.

    Attributes:
        attention_specs: of its layers; none for other models than those of the fused decoder, of
            which only loading them tells.
        vocab_size: None where only loading tells.
        max_position: positions that it can serve.
    """

    attention_specs: list[AttentionSpec]
    dtype: torch.dtype
    vocab_size: int | None
    max_position: int


def expected_model(config: ModelConfig, device: torch.device) -> ExpectedModel:
    """Read what is to be loaded from its config; raises `ModelError`."""
    folder = model_folder(config.model, config.revision, weights=False)
    hf_config = read_config(
        folder, config.trust_remote_code, may_be_quantized=True, overrides=config.hf_overrides
    )
    dtype = resolve_dtype(config, hf_config, device)
    limit = position_limit(hf_config, config.max_model_len)
    if unfused_reason(hf_config) is not None:
        return ExpectedModel([], dtype, None, limit)
    spec = decoder_spec(hf_config)
    with device:
        specs = spec.attention_specs
    return ExpectedModel(specs, dtype, spec.vocab_size, limit)


def eos_token_ids(config: ModelConfig) -> tuple[int, ...]:
    """The end-of-sequence ids of config.json and generation_config.json."""
    return eos_token_ids_of(model_folder(config.model, config.revision, weights=False))


def resolve_dtype(config: ModelConfig, hf_config: Any, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations: "auto" is the checkpoint's on CUDA, else float32."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if device.type == "cpu":
        return torch.float32
    dtype = hf_config.dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.bfloat16


def _fused_decoder(
    config: ModelConfig,
    hf_config: Any,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    quantization: Quantization | None,
    exchange: RankExchange | None,
    reference: Reference | None,
    adapters: AdapterStacks | None,
) -> CausalLM:
    limit = position_limit(hf_config, config.max_model_len)
    if hf_config.get_text_config(decoder=True) is not hf_config:
        logger.info(
            "%s: a %s model is served as its text part; images and other inputs are refused",
            config.model,
            hf_config.model_type,
        )
    spec = replace(decoder_spec(hf_config), max_position=limit)
    source: WeightSource
    if config.load_format == "dummy":
        source = DummyWeights(spec.initializer_range, device)
    else:
        # Some tied checkpoints hold the LM head as well.
        ignored = frozenset({"lm_head.weight"} if spec.lm_head.is_tied else ())
        num_layers = len(spec.layers) if spec.num_drafting_layers else None
        source = Checkpoint(folder, ignored, num_layers, renamed=spec.renamed, unread=spec.unread)
    fp8 = config.quantization == "fp8" and quantization is None
    routes = _routes(config, spec)
    reader = WeightReader.of(
        source,
        dtype,
        device,
        fp8=fp8,
        quantization=quantization,
        exchange=exchange,
        reads_twice=reference is not None,
        invariant=config.batch_invariant,
        adapters=adapters,
        routes=routes,
    )
    num_positions = min(limit, config.max_model_len or limit) + SPARE_POSITIONS
    with torch.no_grad():
        return Decoder(spec, reader, num_positions, reference)


def _routes(config: ModelConfig, spec: DecoderSpec) -> ExpertRoutes | None:
    """What keeps the experts that tokens take, where it was asked for; raises `ModelError`."""
    if not config.returns_routes:
        return None
    if not any(sublayer.has_experts for layer in spec.layers for sublayer in layer.sublayers):
        raise ModelError(f"{ROUTES_FLAG}: {config.model!r} has no experts; leave it out")
    return ExpertRoutes(len(spec.layers))


def _describe(
    reference: Reference,
    config: ModelConfig,
    quantization: Quantization | None,
    dtype: torch.dtype,
) -> None:
    """Say of a reference what it is of, where weights are quantised."""
    kind = "random " if config.load_format == "dummy" else ""
    precision = str(dtype).removeprefix("torch.")
    if quantization is not None:
        reference.scheme = quantization.name
        reference.weights = f"{kind}dequantized weights in {precision}"
    elif config.quantization is not None:
        reference.scheme = config.quantization
        reference.weights = f"{kind}unquantized weights in {precision}"


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


def _check_quantization(
    config: ModelConfig,
    quantization: Quantization | None,
    folder: Path,
    hf_config: Any,
    device: torch.device,
) -> None:
    """Refuse to round what is rounded, and float8 products on a GPU without them."""
    flag, where = f"--quantization {config.quantization}", folder / "config.json"
    lack = fp8_lack(device)
    model_type = hf_config.model_type
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
            f"{flag} rounds weights that are not quantized, and {folder} is "
            f"({quantization.name}); leave it out"
        )
    if is_fp8 and lack:
        raise ModelError(
            f"{where}: quantization_config ({quantization.name}) {lack}; give a model in bfloat16 "
            "or 4 bits"
        )
    name = f"{where}: quantization_config ({quantization.name})"
    _warn_if_untested(name, model_type, device)


def _warn_if_untested(what: str, model_type: str, device: torch.device) -> None:
    """Warn of quantized layers of which no test has run the like on a GPU."""
    if device.type == "cuda" and model_type not in TESTED_QUANTIZED:
        logger.warning(
            "%s: the kernels of such a model were tested in part on a GPU: compare its logprobs "
            "with the unquantized model's",
            what,
        )
