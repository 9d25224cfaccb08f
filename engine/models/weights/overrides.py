"""Values of a model's config that the server's flags replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROPE = "rope_scaling"
"""The key under which RoPE's scaling is given, whatever the config's own is."""
_OWN_ROPE = "rope_parameters"
_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
"""Scalings that transformers computes."""
_STRETCHED = frozenset({"yarn", "linear", "dynamic"})
"""Scalings whose factor says by how much there are more positions."""


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A config with other values: objects are merged key by key, anything else is replaced.

    `rope_scaling` belongs to the config of the text, where there is one apart, and keeps its base
    (`rope_theta`). Where it stretches the positions, and nothing else says how many there are, they
    are the original ones times its factor.

    Args:
        config: config.json, parsed.
    """
    values = dict(overrides)
    rope = values.pop(ROPE, None)
    found = _merged(config, values)
    if rope is None:
        return found
    text = found.get("text_config")
    inner = dict(text) if isinstance(text, dict) else found
    _set_rope(inner, rope, overrides)
    if inner is not found:
        found["text_config"] = inner
    return found


def refused_rope(overrides: Mapping[str, Any]) -> str | None:
    """Why the scaling that overrides give is none; None where it is one, or none is given."""
    rope = overrides.get(ROPE)
    if rope is None:
        return None
    if not isinstance(rope, dict):
        return f"it must be an object, got {rope!r}"
    kind = rope.get("rope_type", rope.get("type", "default"))
    return None if kind in _KINDS else f"the type {kind!r} is none of {', '.join(_KINDS)}"


def _merged(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(config)
    for key, value in values.items():
        own = found.get(key)
        if isinstance(own, dict) and isinstance(value, dict):
            value = _merged(own, value)
        found[key] = value
    return found


def _set_rope(text: dict[str, Any], rope: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Scale RoPE in the config of a text, in place."""
    rope = dict(rope)
    kind = rope.setdefault("rope_type", rope.pop("type", "default"))
    positions = text.get("max_position_embeddings")
    if kind in _STRETCHED and isinstance(positions, int):
        original = rope.get("original_max_position_embeddings", positions)
        if kind == "yarn":
            rope["original_max_position_embeddings"] = original
        if "max_position_embeddings" not in overrides:
            text["max_position_embeddings"] = int(original * rope.get("factor", 1.0))
    own = text.pop(_OWN_ROPE, None)
    base = own.get("rope_theta") if isinstance(own, dict) else text.get("rope_theta")
    if base is not None:
        rope.setdefault("rope_theta", base)
    text[ROPE] = rope
