"""What a head that drafts is loaded for: the target, and the table of its own rotations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.config import ModelConfig
from engine.contracts.model import CausalLM
from engine.kernels.rope import rope_table
from engine.models.layers.rotation import RotationSpeeds
from engine.models.model_config import read_config
from engine.models.weights.folder import model_folder
from engine.speculative_config import SpeculativeConfig
from sampling.vocab_shard import VocabShard


class HeadTarget(NamedTuple):
    """A target, as loaders of heads read it.

    Attributes:
        config: where weights are random, the head's are too.
        device: of the target's weights and of the head's.
        num_positions: length of the head's `rope_table`.
        shard: the ids of the target's logits.
    """

    config: ModelConfig
    model: CausalLM
    device: torch.device
    num_positions: int
    shard: VocabShard

    @property
    def is_dummy(self) -> bool:
        """Whether weights are random."""
        return self.config.load_format == "dummy"

    def head_folder(self, head: SpeculativeConfig) -> tuple[Path, Any]:
        """The folder of a head that has one of its own, and its config; raises `ModelError`."""
        assert head.model is not None
        folder = model_folder(head.model, head.revision, weights=not self.is_dummy)
        return folder, read_config(folder, self.config.trust_remote_code)

    def angles(self, speeds: RotationSpeeds) -> torch.Tensor:
        """The `rope_table` of the head's rotations."""
        return rope_table(speeds.inv_freq.to(self.device), speeds.scale, self.num_positions)
