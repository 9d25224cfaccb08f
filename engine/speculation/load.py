"""From a SpeculativeConfig to a drafter for a target that is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.attention.base import AttentionBackend, AttentionSpec, KVCache
from engine.batch import RequestRows
from engine.config import ModelConfig
from engine.models.base import CausalLM
from engine.speculation.base import Drafter
from engine.speculation.config import SpeculativeConfig
from sampling.rows import SamplingRows

MakeAttention = Callable[[Sequence[AttentionSpec], KVCache], AttentionBackend]
"""The backend the target uses too, over a cache of the drafter's."""


def load_drafter(
    config: SpeculativeConfig,
    target_config: ModelConfig,
    target: CausalLM,
    rows: RequestRows,
    sampling_rows: SamplingRows,
    make_attention: MakeAttention,
) -> Drafter:
    """The drafter, its weights on the target's device, without a KV cache yet (`allocate`).

    Args:
        target_config: the draft's weights come in its dtype, and random where its are.
        rows, sampling_rows: the engine's; one row more than choices may hold.

    Raises:
        ModelError: a head or draft model that cannot be read, or does not fit the target.
    """
    raise NotImplementedError
