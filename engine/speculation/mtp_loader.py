"""Loads the multi-token-prediction head of the target's own checkpoint."""

from __future__ import annotations

import torch

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.families.table import decoder_spec, unfused_reason
from engine.models.formats.config import quantization as quantization_of
from engine.models.formats.reader import WeightReader
from engine.models.model_config import read_config
from engine.models.weights.folder import model_folder, read_json
from engine.models.weights.sources import Checkpoint, DummyWeights
from engine.models.weights.stored import Unread, WeightSource
from engine.speculation.head_target import HeadTarget
from engine.speculation.mtp_head import MtpHead


def load_mtp_head(of_target: HeadTarget) -> tuple[MtpHead, torch.Tensor]:
    """Load the head, stored as the target is, and make its `rope_table`.

    Raises:
        ModelError: the target's checkpoint has none.
    """
    target_config, target, device = of_target.config, of_target.model, of_target.device
    is_dummy = of_target.is_dummy
    folder = model_folder(target_config.model, target_config.revision, weights=not is_dummy)
    hf_config = read_config(
        folder,
        target_config.trust_remote_code,
        may_be_quantized=True,
        overrides=target_config.hf_overrides,
    )
    spec = None if unfused_reason(hf_config) is not None else decoder_spec(hf_config)
    drafting = None if spec is None else spec.drafting
    if spec is None or drafting is None:
        raise _error(target_config, f"{hf_config.model_type} models have none that is served")
    source: WeightSource
    if is_dummy:
        source = DummyWeights(spec.initializer_range, device)
    else:
        source = Checkpoint(folder, Unread(renamed=spec.renamed))
        if source.shape(f"{drafting.fuse}.weight") is None:
            raise _error(target_config, f"there is no tensor {drafting.fuse}.weight")
    path = folder / "config.json"
    reader = WeightReader.of(
        source,
        target.dtype,
        device,
        fp8=target_config.quantization == "fp8",
        quantization=quantization_of(read_json(path), path),
    )
    with torch.no_grad():
        head = MtpHead(drafting, reader, target, of_target.shard)
    if isinstance(source, Checkpoint):
        source.close()
    return head, of_target.angles(head.rotation)


def _error(config: ModelConfig, reason: str) -> ModelError:
    return ModelError(
        f"--speculative-config: method 'mtp': {config.model} has no multi-token-prediction head: "
        f"{reason}; use another method"
    )
