"""Makes a transformers causal language model: from safetensors, or random from its config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from engine.errors import AS_PUBLISHED, ModelError, kind_and_line
from engine.models.weights.sources import ANEW, DUMMY_SEED, OTHER_CONFIG, weight_files


def checkpoint_module(
    folder: Path, config: Any, dtype: torch.dtype, device: torch.device, trust_remote_code: bool
) -> nn.Module:
    """Load the checkpoint's model with eager attention, in evaluation mode.

    Raises:
        ModelError: files are missing, or tensors are missing, mis-shaped or left over.
    """
    weight_files(folder)
    transformers_logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # so that they are reported below
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
        )
    except Exception as error:  # whatever the architecture's own code raises
        raise ModelError(f"{folder}: {kind_and_line(error)}; {OTHER_CONFIG}") from error
    _check_loading(folder, info)
    return _ready(model, device)


def dummy_module(
    config: Any, dtype: torch.dtype, device: torch.device, trust_remote_code: bool
) -> nn.Module:
    """Make a model of random weights as its architecture initializes them, the same at each start.

    Raises:
        ModelError: its own code cannot make it.
    """
    devices = [device] if device.type == "cuda" else []
    settings = {"dtype": dtype, "attn_implementation": "eager"}
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(DUMMY_SEED)
        try:
            model = AutoModelForCausalLM.from_config(
                config, trust_remote_code=trust_remote_code, **settings
            )
        except Exception as error:  # whatever the architecture's own code raises
            raise ModelError(
                f"config.json: transformers makes no {config.model_type} of it: "
                f"{kind_and_line(error)}; {AS_PUBLISHED}"
            ) from error
    return _ready(model, device)


def _ready(model: Any, device: torch.device) -> nn.Module:
    module: nn.Module = model.to(device).eval().requires_grad_(False)
    return module


def _check_loading(folder: Path, info: dict[str, Any]) -> None:
    for name, found, asked in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"{folder}: tensor {name!r} has shape {list(found)}, the config asks for "
            f"{list(asked)}; {OTHER_CONFIG}"
        )
    for name in sorted(info["missing_keys"]):
        raise ModelError(f"{folder} has no tensor {name!r}; {ANEW}, or {OTHER_CONFIG}")
    for name in sorted(info["unexpected_keys"]):
        raise ModelError(
            f"{folder}: tensor {name!r} has no place in this architecture; {OTHER_CONFIG}"
        )
