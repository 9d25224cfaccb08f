"""Refuses configs with numbers of which no layer could be made, before weights are met."""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.errors import AS_PUBLISHED, ModelError

UNSAID = object()
"""In place of a value that a config does not have."""


class FamilyNumbers(NamedTuple):
    """What a family reads of a config besides the sizes that all have.

    A config may lack any of them; what it has is checked.

    Attributes:
        sizes: at least 1. optional: sizes that may be null.
        counts: at least 0. scales: above 0. factors: any number.
        lists: numbers of a list, by its name.
        divided: names of two sizes, the second of which divides the first.
    """

    sizes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    lists: tuple[tuple[str, int], ...] = ()
    divided: tuple[tuple[str, str], ...] = ()


COMMON = FamilyNumbers(
    optional=(
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim"),
    ),
    divided=(("num_attention_heads", "num_key_value_heads"),),
)
DELTA = FamilyNumbers(
    sizes=(
        *("linear_num_key_heads", "linear_num_value_heads"),
        *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
    ),
    divided=(("linear_num_value_heads", "linear_num_key_heads"),),
)
SPACE = FamilyNumbers(
    sizes=("mamba_n_heads", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    divided=(("mamba_n_heads", "mamba_n_groups"),),
)
GRANITE = FamilyNumbers(
    scales=("logits_scaling",), factors=("embedding_multiplier", "residual_multiplier")
)
LATENT = FamilyNumbers(
    sizes=("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size"),
    optional=("q_lora_rank",),
)
NUMBERS = {
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "ernie4_5_moe": FamilyNumbers(sizes=("moe_k", "moe_layer_interval", "moe_intermediate_size")),
    "falcon_h1": SPACE._replace(
        optional=("mamba_d_ssm",),
        factors=(
            *("embedding_multiplier", "lm_head_multiplier", "key_multiplier"),
            *("attention_in_multiplier", "attention_out_multiplier"),
            *("ssm_in_multiplier", "ssm_out_multiplier"),
        ),
        lists=(("mlp_multipliers", 2), ("ssm_multipliers", 5)),
    ),
    "gemma4_text": FamilyNumbers(counts=("num_kv_shared_layers", "hidden_size_per_layer_input")),
    "glm4_moe_lite": LATENT,
    "granite": GRANITE,
    "granitemoehybrid": GRANITE._replace(
        sizes=(*SPACE.sizes, "mamba_d_head"), divided=SPACE.divided
    ),
    "kimi_linear": LATENT._replace(
        sizes=(*LATENT.sizes, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    ),
    "lfm2": FamilyNumbers(sizes=("conv_L_cache", "block_multiple_of")),
    "lfm2_moe": FamilyNumbers(
        sizes=("conv_L_cache", "moe_intermediate_size", "num_experts_per_tok")
    ),
    "mistral4": LATENT._replace(sizes=(*LATENT.sizes, "num_experts_per_tok")),
    "nemotron_h": FamilyNumbers(
        sizes=("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
        optional=("moe_latent_size",),
        divided=(("mamba_num_heads", "n_groups"),),
    ),
    "olmo_hybrid": DELTA,
    "qwen3_5_moe_text": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA,
}
"""What families read, by `model_type`; of others transformers checks it, or no value harms."""


def check_sizes(config: Any) -> None:
    """Refuse numbers of which no layer could be made.

    Raises:
        ModelError: one is none, or too small, or heads do not divide.
    """
    own = NUMBERS.get(config.model_type, FamilyNumbers())
    if getattr(config, "use_sliding_window", True):
        own = own._replace(optional=(*own.optional, "sliding_window"))
    for numbers in (COMMON, own):
        for name in (*numbers.sizes, *numbers.optional):
            _check(config, name, 1, is_optional=name in numbers.optional)
        for name in numbers.counts:
            _check(config, name, 0)
        for name in numbers.scales:
            _check(config, name, 0, above=True)
        for name in numbers.factors:
            _check(config, name, None)
        for name, length in numbers.lists:
            _check_list(config, name, length)
        for whole, part in numbers.divided:
            _check_divided(config, whole, part)


def check_given(config: Any, *names: str) -> None:
    """Refuse sizes that a config says by a flag that it has, and has not; raises `ModelError`."""
    for name in names:
        _check(config, name, 1)


def _check(
    config: Any,
    name: str,
    least: int | None,
    *,
    above: bool = False,
    is_optional: bool = False,
) -> None:
    """Refuse a value that is no number, or less than `least`, or, with `above`, no more."""
    value = _common(config, name)
    if value is UNSAID or (value is None and is_optional):
        return
    if not isinstance(value, int | float):
        wanted = "a number"
    elif least is not None and (value < least or (above and value == least)):
        wanted = f"{'above' if above else 'at least'} {least}"
    else:
        return
    raise ModelError(f"config.json: {name} must be {wanted}, got {value!r}; {AS_PUBLISHED}")


def _check_list(config: Any, name: str, length: int) -> None:
    values = _common(config, name)
    if values is UNSAID:
        return
    if (
        not isinstance(values, list | tuple)
        or len(values) != length
        or not all(isinstance(value, int | float) for value in values)
    ):
        raise ModelError(
            f"config.json: {name} must be a list of {length} numbers, got {values!r}; "
            f"{AS_PUBLISHED}"
        )


def _check_divided(config: Any, name: str, divisor: str) -> None:
    whole, part = _common(config, name), _common(config, divisor)
    if isinstance(whole, int) and isinstance(part, int) and whole % part:
        raise ModelError(
            f"config.json: {divisor} {part} does not divide the {whole} of {name}; {AS_PUBLISHED}"
        )


def _common(config: Any, name: str) -> Any:
    """What a config says of all layers alike; `UNSAID` of what it has not, or a layer has alone."""
    try:
        return getattr(config, name, UNSAID)
    except RuntimeError:  # transformers': layers differ in it
        return UNSAID
