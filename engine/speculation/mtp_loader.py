"""Loads the multi-token-prediction head of the target's own checkpoint."""

from __future__ import annotations

import torch

from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.errors import ModelError
from engine.kernels.rope import rope_table
from engine.models.families.table import decoder_spec, unfused_reason
from engine.models.formats.config import quantization as quantization_of
from engine.models.formats.reader import WeightReader
from engine.models.model_config import read_config
from engine.models.weights.folder import model_folder, read_json
from engine.models.weights.sources import Checkpoint, DummyWeights
from engine.models.weights.stored import WeightSource
from engine.speculation.mtp_head import MtpHead
from engine.speculative_config import SpeculativeConfig
from sampling.vocab_shard import VocabShard


def load_mtp_head(
    config: SpeculativeConfig,
    target_config: ModelConfig,
    target: CausalLM,
    device: torch.device,
    num_positions: int,
    shard: VocabShard,
) -> tuple[MtpHead, torch.Tensor]:
    """Load the head, stored as the target is, and make its `rope_table`.

    Args:
        num_positions: length of the table.
        shard: the ids of the target's logits.

    Raises:
        ModelError: the target's checkpoint has none.
    """
    is_dummy = target_config.load_format == "dummy"
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
        source = Checkpoint(folder, renamed=spec.renamed)
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
        head = MtpHead(drafting, reader, target, shard)
    if isinstance(source, Checkpoint):
        source.close()
    speeds = head.rotation
    return head, rope_table(speeds.inv_freq.to(device), speeds.scale, num_positions)


def _error(config: ModelConfig, reason: str) -> ModelError:
    return ModelError(
        f"--speculative-config: method 'mtp': {config.model} has no multi-token-prediction head: "
        f"{reason}; use another method"
    )
