"""The table of architectures that run on our own layers, and the families that describe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.errors import ModelError
from engine.models.families.cohere import cohere, cohere2
from engine.models.families.config import NotFusedError, check_sizes, refuse
from engine.models.families.deepseek import deepseek_v2, deepseek_v3
from engine.models.families.gemma import gemma, gemma2, gemma3_text
from engine.models.families.glm import glm, glm4
from engine.models.families.gpt_oss import gpt_oss
from engine.models.families.granite import granite
from engine.models.families.llama import llama, mistral, smollm3
from engine.models.families.mixtral import mixtral
from engine.models.families.olmo import olmo2, olmoe
from engine.models.families.phi import phi, phi3
from engine.models.families.qwen import qwen2, qwen2_moe, qwen3, qwen3_moe
from engine.models.families.stablelm import stablelm
from engine.models.families.starcoder2 import starcoder2
from engine.models.layers.decoder_spec import DecoderSpec


class Architecture(NamedTuple):
    """An architecture's `model_type`, and what describes a decoder of its configs."""

    model_type: str
    describe: Callable[[Any], DecoderSpec]


ARCHITECTURES = {
    "CohereForCausalLM": Architecture("cohere", cohere),
    "Cohere2ForCausalLM": Architecture("cohere2", cohere2),
    "DeepseekV2ForCausalLM": Architecture("deepseek_v2", deepseek_v2),
    "DeepseekV3ForCausalLM": Architecture("deepseek_v3", deepseek_v3),
    "GemmaForCausalLM": Architecture("gemma", gemma),
    "Gemma2ForCausalLM": Architecture("gemma2", gemma2),
    "Gemma3ForCausalLM": Architecture("gemma3_text", gemma3_text),
    "GlmForCausalLM": Architecture("glm", glm),
    "Glm4ForCausalLM": Architecture("glm4", glm4),
    "GptOssForCausalLM": Architecture("gpt_oss", gpt_oss),
    "GraniteForCausalLM": Architecture("granite", granite),
    "LlamaForCausalLM": Architecture("llama", llama),
    "MistralForCausalLM": Architecture("mistral", mistral),
    "MixtralForCausalLM": Architecture("mixtral", mixtral),
    "Olmo2ForCausalLM": Architecture("olmo2", olmo2),
    "Olmo3ForCausalLM": Architecture("olmo3", olmo2),
    "OlmoeForCausalLM": Architecture("olmoe", olmoe),
    "PhiForCausalLM": Architecture("phi", phi),
    "Phi3ForCausalLM": Architecture("phi3", phi3),
    "Qwen2ForCausalLM": Architecture("qwen2", qwen2),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", qwen2_moe),
    "Qwen3ForCausalLM": Architecture("qwen3", qwen3),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", qwen3_moe),
    "SmolLM3ForCausalLM": Architecture("smollm3", smollm3),
    "StableLmForCausalLM": Architecture("stablelm", stablelm),
    "Starcoder2ForCausalLM": Architecture("starcoder2", starcoder2),
}
DESCRIPTIONS = dict(ARCHITECTURES.values())
"""What describes a decoder, by `model_type`."""
TESTED_QUANTIZED = {"llama", "mistral", "qwen2", "qwen3", "smollm3"} | {
    *("deepseek_v2", "deepseek_v3", "gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
}
"""Model types of whose quantized layers tests have run the like on a GPU."""


def unfused_reason(config: Any) -> str | None:
    """Why a transformers config does not run on our own layers; None if it does."""
    architecture = (config.architectures or ["(none)"])[0]
    own = ARCHITECTURES.get(architecture)
    if own is None or own.model_type != config.model_type:
        return f"architecture {architecture}"
    return unfused_layer_reason(config)


def unfused_layer_reason(config: Any) -> str | None:
    """Why a layer of one of the families does not run on our own; None if it does."""
    try:
        decoder_spec(config)
    except NotFusedError as error:
        return str(error)
    except ModelError:  # it would run, if it were right; whoever makes it says what is wrong
        return None
    return None


def decoder_spec(config: Any) -> DecoderSpec:
    """Describe the decoder of a transformers config.

    Raises:
        ModelError: a size cannot be.
        NotFusedError: a family does not have what it asks for, see `unfused_reason`.
    """
    check_sizes(config)
    refuse(config, "use_qk_norm", "qk_layernorm", "use_bidirectional_attention")
    return DESCRIPTIONS[config.model_type](config)
