"""Loads the model of a `ModelConfig`: fused modules where they fit, else transformers'."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from engine.adapters.stacks import AdapterStacks
from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.errors import ModelError
from engine.memory.routes import ExpertRoutes
from engine.models.decoder import Decoder
from engine.models.expected import FolderConfig, resolve_dtype
from engine.models.fallback.checks import position_limit
from engine.models.families.table import decoder_spec, is_described, unfused_reason
from engine.models.formats.reader import WeightReader
from engine.models.formats.scheme import Quantization
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.reference import Reference
from engine.models.refusals import ROUTES_FLAG, check_quantization, check_ranks, check_unfused
from engine.models.tied_head import with_head
from engine.models.weights.sources import Checkpoint, DummyWeights
from engine.models.weights.stored import Unread, WeightSource
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)

SPARE_POSITIONS = 64
"""Number of rotations past the context: a step in flight when a row ends asks for some of them."""


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
    own = FolderConfig.read(config, weights=config.load_format != "dummy")
    quantization = own.quantization
    dtype = resolve_dtype(config, own.hf_config, device)
    reason = unfused_reason(own.hf_config)
    if exchange is not None and exchange.size > 1:
        check_ranks(config, exchange.size)
    if reason is not None or config.model_impl == "transformers":
        has_adapters = adapters is not None
        check_unfused(config, reason, own.path, quantization, has_adapters=has_adapters)
        return _fallback(config, own, dtype, device, reason)
    check_quantization(config, own, quantization, device)
    if reference is not None:
        _describe(reference, config, quantization, dtype)
        reference = reference if reference.scheme else None
    return _fused_decoder(config, own, dtype, device, quantization, exchange, reference, adapters)


def _fallback(
    config: ModelConfig,
    own: FolderConfig,
    dtype: torch.dtype,
    device: torch.device,
    reason: str | None,
) -> CausalLM:
    """The model on transformers' modules.

    Args:
        reason: why it is not on our own; None where it was not wanted there.
    """
    from engine.models.fallback.model import load_fallback_model  # seconds to import

    try:
        return load_fallback_model(config, own.hf_config, own.path.parent, dtype, device)
    except ModelError as error:
        if reason is None or not is_described(own.hf_config):
            raise
        # What they lack is not what is to be changed: with other values our own layers run it.
        refused = f"{own.hf_config.architectures[0]} is not supported: "
        raise ModelError(
            f"{refused}{reason}, which the fused decoder does not run; nor do transformers' "
            f"modules: {str(error).removeprefix(refused)}"
        ) from error


def _fused_decoder(
    config: ModelConfig,
    own: FolderConfig,
    dtype: torch.dtype,
    device: torch.device,
    quantization: Quantization | None,
    exchange: RankExchange | None,
    reference: Reference | None,
    adapters: AdapterStacks | None,
) -> CausalLM:
    hf_config = own.hf_config
    limit = position_limit(hf_config, config.max_model_len)
    if hf_config.get_text_config(decoder=True) is not hf_config:
        logger.info(
            "%s: a %s model is served as its text part; images and other inputs are refused",
            config.model,
            hf_config.model_type,
        )
    spec = with_head(replace(decoder_spec(hf_config), max_position=limit), config, own, dtype)
    reader = WeightReader.of(
        _source(config, own, spec, device),
        dtype,
        device,
        fp8=config.quantization == "fp8" and quantization is None,
        quantization=quantization,
        exchange=exchange,
        reads_twice=reference is not None,
        invariant=config.batch_invariant,
        adapters=adapters,
        routes=_routes(config, spec),
    )
    num_positions = min(limit, config.max_model_len or limit) + SPARE_POSITIONS
    with torch.no_grad():
        return Decoder(spec, reader, num_positions, reference)


def _source(
    config: ModelConfig, own: FolderConfig, spec: DecoderSpec, device: torch.device
) -> WeightSource:
    # Some tied checkpoints hold the LM head as well.
    names = frozenset({"lm_head.weight"} if spec.lm_head.is_tied else ())
    num_layers = len(spec.layers) if spec.num_drafting_layers else None
    unread = Unread(names, num_layers, spec.unread, spec.renamed)
    if config.load_format == "dummy":
        return DummyWeights(spec.initializer_range, device, unread)
    return Checkpoint(own.path.parent, unread)


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
