"""What is known of a model from its config, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.config import ModelConfig
from engine.contracts.attention import AttentionSpec
from engine.models.fallback.checks import position_limit
from engine.models.families.table import decoder_spec, unfused_reason
from engine.models.formats.config import quantization
from engine.models.formats.scheme import Quantization
from engine.models.model_config import read_config
from engine.models.weights.folder import eos_token_ids as eos_token_ids_of
from engine.models.weights.folder import model_folder, read_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class FolderConfig(NamedTuple):
    """The config of a model folder.

    Attributes:
        path: of config.json.
        hf_config: transformers' config, with the overrides that were asked for.
    """

    path: Path
    hf_config: Any

    @classmethod
    def read(cls, config: ModelConfig, *, weights: bool = False) -> FolderConfig:
        """Read it from a folder or hub id; raises `ModelError`.

        Args:
            weights: those of a hub id are fetched too.
        """
        folder = model_folder(config.model, config.revision, weights=weights)
        remote, changed = config.trust_remote_code, config.hf_overrides
        hf_config = read_config(folder, remote, may_be_quantized=True, overrides=changed)
        return cls(folder / "config.json", hf_config)

    @property
    def quantization(self) -> Quantization | None:
        """How the checkpoint's weights are quantized; None where they are not."""
        return quantization(read_json(self.path), self.path)


class ExpectedModel(NamedTuple):
    """What a model's config says of it.

    Attributes:
        attention_specs: of its layers; none for other models than those of the fused decoder, of
            which only loading them shows.
        vocab_size: None where only loading shows it.
        max_position: positions that it can serve.
    """

    attention_specs: list[AttentionSpec]
    dtype: torch.dtype
    vocab_size: int | None
    max_position: int


def expected_model(config: ModelConfig, device: torch.device) -> ExpectedModel:
    """Read what is to be loaded from its config; raises `ModelError`."""
    hf_config = FolderConfig.read(config).hf_config
    dtype = resolve_dtype(config, hf_config, device)
    limit = position_limit(hf_config, config.max_model_len)
    if unfused_reason(hf_config) is not None:
        return ExpectedModel([], dtype, None, limit)
    spec = decoder_spec(hf_config)
    with device:
        specs = spec.attention_specs
    return ExpectedModel(specs, dtype, spec.vocab_size, limit)


def max_position(config: ModelConfig) -> int:
    """The positions that the model was made for."""
    return position_limit(FolderConfig.read(config).hf_config, config.max_model_len)


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
