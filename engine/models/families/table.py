"""The table of architectures that run on our own layers, and the families that describe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.errors import AS_PUBLISHED, ConfigError, ModelError, kind_and_line
from engine.models.families.apertus import apertus
from engine.models.families.checks import check_sizes
from engine.models.families.cohere import cohere, cohere2
from engine.models.families.config import NotFusedError, refuse
from engine.models.families.deepseek import deepseek_v2, deepseek_v3
from engine.models.families.ernie import ernie4_5, ernie4_5_moe
from engine.models.families.gemma import gemma, gemma2, gemma3_text
from engine.models.families.gemma4 import gemma4
from engine.models.families.glm import glm, glm4, glm4_moe, glm4_moe_lite
from engine.models.families.granite import granite
from engine.models.families.hunyuan import hunyuan_v1_dense, hunyuan_v1_moe
from engine.models.families.hybrid.falcon_h1 import falcon_h1
from engine.models.families.hybrid.granite4 import granitemoehybrid
from engine.models.families.hybrid.kimi_linear import kimi_linear
from engine.models.families.hybrid.lfm2 import lfm2, lfm2_moe
from engine.models.families.hybrid.nemotron_h import nemotron_h
from engine.models.families.hybrid.olmo_hybrid import olmo_hybrid
from engine.models.families.hybrid.qwen3_next import qwen3_5, qwen3_next
from engine.models.families.llama import llama, smollm3
from engine.models.families.mistral import ministral3, mistral, mistral3, mistral4
from engine.models.families.mixture.gpt_oss import gpt_oss
from engine.models.families.mixture.minimax import minimax_m2
from engine.models.families.mixture.mixtral import mixtral
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
    "ApertusForCausalLM": Architecture("apertus", apertus),
    "CohereForCausalLM": Architecture("cohere", cohere),
    "Cohere2ForCausalLM": Architecture("cohere2", cohere2),
    "DeepseekV2ForCausalLM": Architecture("deepseek_v2", deepseek_v2),
    "DeepseekV3ForCausalLM": Architecture("deepseek_v3", deepseek_v3),
    "Ernie4_5ForCausalLM": Architecture("ernie4_5", ernie4_5),
    "Ernie4_5_MoeForCausalLM": Architecture("ernie4_5_moe", ernie4_5_moe),
    "FalconH1ForCausalLM": Architecture("falcon_h1", falcon_h1),
    "GemmaForCausalLM": Architecture("gemma", gemma),
    "Gemma2ForCausalLM": Architecture("gemma2", gemma2),
    "Gemma3ForCausalLM": Architecture("gemma3_text", gemma3_text),
    "Gemma4ForCausalLM": Architecture("gemma4_text", gemma4),
    "Gemma4ForConditionalGeneration": Architecture("gemma4", gemma4),
    "GlmForCausalLM": Architecture("glm", glm),
    "Glm4ForCausalLM": Architecture("glm4", glm4),
    "Glm4MoeForCausalLM": Architecture("glm4_moe", glm4_moe),
    "Glm4MoeLiteForCausalLM": Architecture("glm4_moe_lite", glm4_moe_lite),
    "GptOssForCausalLM": Architecture("gpt_oss", gpt_oss),
    "GraniteForCausalLM": Architecture("granite", granite),
    "GraniteMoeHybridForCausalLM": Architecture("granitemoehybrid", granitemoehybrid),
    "HunYuanDenseV1ForCausalLM": Architecture("hunyuan_v1_dense", hunyuan_v1_dense),
    "HunYuanMoEV1ForCausalLM": Architecture("hunyuan_v1_moe", hunyuan_v1_moe),
    "KimiLinearForCausalLM": Architecture("kimi_linear", kimi_linear),
    "Lfm2ForCausalLM": Architecture("lfm2", lfm2),
    "Lfm2MoeForCausalLM": Architecture("lfm2_moe", lfm2_moe),
    "LlamaForCausalLM": Architecture("llama", llama),
    "MiniMaxM2ForCausalLM": Architecture("minimax_m2", minimax_m2),
    "Ministral3ForCausalLM": Architecture("ministral3", ministral3),
    "Mistral3ForConditionalGeneration": Architecture("mistral3", mistral3),
    "Mistral4ForCausalLM": Architecture("mistral4", mistral4),
    "MistralForCausalLM": Architecture("mistral", mistral),
    "MixtralForCausalLM": Architecture("mixtral", mixtral),
    "NemotronHForCausalLM": Architecture("nemotron_h", nemotron_h),
    "Olmo2ForCausalLM": Architecture("olmo2", olmo2),
    "Olmo3ForCausalLM": Architecture("olmo3", olmo2),
    "OlmoeForCausalLM": Architecture("olmoe", olmoe),
    "OlmoHybridForCausalLM": Architecture("olmo_hybrid", olmo_hybrid),
    "PhiForCausalLM": Architecture("phi", phi),
    "Phi3ForCausalLM": Architecture("phi3", phi3),
    "Qwen2ForCausalLM": Architecture("qwen2", qwen2),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", qwen2_moe),
    "Qwen3ForCausalLM": Architecture("qwen3", qwen3),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", qwen3_moe),
    "Qwen3NextForCausalLM": Architecture("qwen3_next", qwen3_next),
    "Qwen3_5ForCausalLM": Architecture("qwen3_5_text", qwen3_5),
    "Qwen3_5ForConditionalGeneration": Architecture("qwen3_5", qwen3_5),
    "Qwen3_5MoeForCausalLM": Architecture("qwen3_5_moe_text", qwen3_5),
    "Qwen3_5MoeForConditionalGeneration": Architecture("qwen3_5_moe", qwen3_5),
    "SmolLM3ForCausalLM": Architecture("smollm3", smollm3),
    "StableLmForCausalLM": Architecture("stablelm", stablelm),
    "Starcoder2ForCausalLM": Architecture("starcoder2", starcoder2),
}
DESCRIPTIONS = dict(ARCHITECTURES.values())
"""What describes a decoder, by `model_type`."""
UNREADABLE = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    RuntimeError,  # torch's, of shapes, and transformers', of what layers differ in
)
"""What reading a value as what it is not raises. There are more wrong values than checks."""
TESTED_QUANTIZED = {"llama", "mistral", "qwen2", "qwen3", "smollm3"} | {
    *("deepseek_v2", "deepseek_v3", "gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
}
"""Model types of whose quantized layers tests have run the like on a GPU."""


def unfused_reason(config: Any) -> str | None:
    """Why a transformers config does not run on our own layers; None if it does."""
    if not is_described(config):
        return f"architecture {(config.architectures or ['(none)'])[0]}"
    return unfused_layer_reason(config)


def is_described(config: Any) -> bool:
    """Whether a family describes the architecture of a transformers config."""
    own = ARCHITECTURES.get((config.architectures or [""])[0])
    return own is not None and own.model_type == config.model_type


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
        ModelError: a size cannot be, or another value is not what the family reads it as.
        NotFusedError: a family does not have what it asks for, see `unfused_reason`.
    """
    text, describe = config.get_text_config(decoder=True), DESCRIPTIONS[config.model_type]
    try:
        check_sizes(text)
        if getattr(text, "use_bidirectional_attention", None) != "vision":  # among images alone
            refuse(text, "use_bidirectional_attention")
        return describe(text)
    except ConfigError:  # a ValueError, which says it better
        raise
    except UNREADABLE as error:
        raise ModelError(
            f"config.json: no layers of {config.model_type} can be made of its values "
            f"({kind_and_line(error)}); {AS_PUBLISHED}"
        ) from error
