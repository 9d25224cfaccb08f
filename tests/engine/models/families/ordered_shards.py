"""Models whose weights are in another order, that ranks divide."""

from __future__ import annotations

import torch
import transformers as hf

from tests.engine.models.families.quantized_shards import QUANTIZED
from tests.engine.models.formats.int4_schemes import GPTQ, activation_order
from tests.engine.models.formats.packers import (
    Tensors,
    gptq,
    round_weight,
)

DESC_ACT = GPTQ | {"desc_act": True}


def ordered(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    order = activation_order(name, weight.shape[1])
    rounded = round_weight(weight, 32, symmetric=False, order=order)
    return gptq(rounded), rounded.values()


WITH_SHARED = hf.Qwen2MoeConfig(
    **QUANTIZED,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=96,
    shared_expert_intermediate_size=160,
)
