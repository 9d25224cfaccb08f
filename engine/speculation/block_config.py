"""What the config.json of a head says that drafts in blocks, checked field by field.

DFlash heads have most of it under `dflash_config`, DSpark heads at the top level. A field that is
not known here may change what a head computes, so it is refused by its name.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import ModelError
from engine.models.families.table import unfused_layer_reason
from engine.models.weights.folder import read_json

NESTED = "dflash_config"
BLOCK_FIELDS = ("block_size", "mask_token_id", "target_layer_ids")
SCALE_FIELDS = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
SELECTOR_FIELDS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
"""Fields that DFlash2 adds."""
MARKOV_FIELDS = ("markov_rank", "markov_head_type", "sample_from_anchor", "draft_vocab_size")
UNREAD_FIELDS = (
    *("auto_map", "num_anchors", "enable_confidence_head", "confidence_head_with_markov"),
    *("rope_theta", "rope_scaling", "torch_dtype", "mlp_bias"),
)
"""Fields of training and of the confidence head, and old names that transformers reads."""
DEFAULT_BLOCK = 16


class Selector(NamedTuple):
    """The sizes of a DFlash2 head's convolutions and of its candidate selector."""

    taps: int
    group: int
    rank: int
    top_k: int


class BlockConfig(NamedTuple):
    """A head that drafts in blocks.

    Attributes:
        block_size: tokens of the blocks it was trained on.
        mask_token_id: the token that holds the place of a draft.
        target_layers: of the target, whose outputs it reads.
        causal: of each of its layers, whether a block's tokens see none after them.
        anchored: the block's first token, which is no draft, predicts the first draft (DSpark);
            else each place predicts its own token.
        selector: of DFlash2; else None.
        markov_rank: of DSpark's transitions; 0 for none.
        num_drafted: ids of its own LM head.
        embedding_scale, logit_scale, softcap: factors of embeddings and logits, and c in
            c * tanh(logit / c); None for none.
    """

    block_size: int
    mask_token_id: int
    target_layers: tuple[int, ...]
    causal: tuple[bool, ...]
    anchored: bool
    selector: Selector | None
    markov_rank: int
    num_drafted: int
    embedding_scale: float
    logit_scale: float
    softcap: float | None

    @property
    def most_drafts(self) -> int:
        """The most drafts that one block has places for."""
        return self.block_size - (not self.anchored)


def block_config(folder: Path, config: Any, method: str) -> BlockConfig:
    """Read a head's config.

    Args:
        config: of transformers, of the same folder.
        method: "dflash" or "dspark".

    Raises:
        ModelError: the message names the field.
    """
    content = read_json(folder / "config.json")
    nested = content.get(NESTED) or {}
    is_dspark = "markov_rank" in content
    if is_dspark != (method == "dspark"):
        own = "dspark" if is_dspark else "dflash"
        raise ModelError(f"{folder}: a head of method {own!r}, not {method!r}")
    if config.model_type != "qwen3":
        raise ModelError(f"{folder}: heads of model_type {config.model_type!r} are not supported")
    reason = unfused_layer_reason(config)
    if reason is not None:
        raise ModelError(f"{folder}: a head with {reason} is not supported")
    own_fields = (*BLOCK_FIELDS, *SCALE_FIELDS)
    top = {*_transformers_fields(config), *own_fields, *UNREAD_FIELDS, NESTED}
    top |= {"is_causal", "num_target_layers", *(MARKOV_FIELDS if is_dspark else ())}
    _check_known(folder, "", content, top)
    _check_known(folder, f"{NESTED}.", nested, (*own_fields, *SELECTOR_FIELDS, "causal"))
    return _checked(folder, config, content | nested)


def _checked(folder: Path, config: Any, fields: dict[str, Any]) -> BlockConfig:
    """The config of known fields, those nested and others together."""
    found = BlockConfig(
        block_size=_integer(folder, fields, "block_size", 2, DEFAULT_BLOCK),
        mask_token_id=_integer(folder, fields, "mask_token_id", 0),
        target_layers=_layers(folder, fields),
        causal=_causal(config, fields),
        anchored="markov_rank" in fields and bool(fields.get("sample_from_anchor", True)),
        selector=_selector(folder, fields),
        markov_rank=_integer(folder, fields, "markov_rank", 0, 0),
        num_drafted=_integer(folder, fields, "draft_vocab_size", 1, config.vocab_size),
        embedding_scale=float(fields.get("input_embedding_scale") or 1.0),
        logit_scale=float(fields.get("output_multiplier") or 1.0),
        softcap=float(fields.get("final_logit_softcapping") or 0.0) or None,
    )
    kind = fields.get("markov_head_type")
    if found.markov_rank and kind not in (None, "vanilla"):
        raise ModelError(f"{folder}: markov_head_type {kind!r} is not supported, 'vanilla' is")
    if found.mask_token_id >= config.vocab_size:
        raise ModelError(
            f"{folder}: mask_token_id must be below vocab_size {config.vocab_size}, "
            f"got {found.mask_token_id}"
        )
    if found.selector and config.hidden_size % found.selector.group:
        raise ModelError(
            f"{folder}: conv_group_size {found.selector.group} does not divide hidden_size "
            f"{config.hidden_size}"
        )
    return found


def _transformers_fields(config: Any) -> Collection[str]:
    """The names of the fields that transformers knows of a config's kind."""
    names: Collection[str] = type(config)().to_dict().keys()
    return names


def _check_known(
    folder: Path, prefix: str, content: dict[str, Any], known: Collection[str]
) -> None:
    for name in content:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ModelError(
                f"{folder}: config.json: field '{prefix}{name}' is unknown, and may change what "
                f"the head computes{meant}"
            )


def _integer(
    folder: Path, fields: dict[str, Any], name: str, least: int, default: int | None = None
) -> int:
    value = fields.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelError(f"{folder}: config.json: {name} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(
            f"{folder}: config.json: {name} must be an integer of at least {least}, got {value!r}"
        )
    return value


def _layers(folder: Path, fields: dict[str, Any]) -> tuple[int, ...]:
    layers = fields.get("target_layer_ids")
    if not isinstance(layers, list) or not layers or not all(type(i) is int for i in layers):
        raise ModelError(
            f"{folder}: config.json: target_layer_ids must be a list of layers, got {layers!r}"
        )
    return tuple(layers)


def _causal(config: Any, fields: dict[str, Any]) -> tuple[bool, ...]:
    """Whether each layer is causal: as the config says, else those with windows are."""
    num_layers: int = config.num_hidden_layers
    said = next((fields[n] for n in ("is_causal", "causal") if fields.get(n) is not None), None)
    if said is not None or "markov_rank" in fields:
        return (bool(said),) * num_layers
    types: list[str] = config.layer_types[:num_layers]
    return tuple(kind == "sliding_attention" for kind in types)


def _selector(folder: Path, fields: dict[str, Any]) -> Selector | None:
    if not any(name in fields for name in SELECTOR_FIELDS):
        return None
    return Selector(*(_integer(folder, fields, name, 1) for name in SELECTOR_FIELDS))
