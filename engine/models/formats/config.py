"""Reads `quantization_config` of a config.json, or says which part of it cannot be served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.kernels.experts.nibbles import MXFP4_GROUP
from engine.kernels.quantized.fp8_blocks import SPAN
from engine.kernels.quantized.int4 import GROUPS
from engine.models.formats.scheme import Inputs, Quantization, Scheme, SchemeGroup

REMEDY = "give the unquantized model as MODEL, or one in fp8, AWQ, GPTQ or compressed-tensors"


def quantization(content: dict[str, Any], path: Path) -> Quantization | None:
    """The quantisation that the content of config.json describes; None where there is none.

    Raises:
        ModelError: it is not one of those that are read; the message names the field.
    """
    found = content.get("quantization_config") or content.get("compression_config")
    if not found:
        return None
    if not isinstance(found, dict):
        raise ModelError(f"{path}: quantization_config {found!r} is no object; {REMEDY}")
    method = str(found.get("quant_method", "unknown")).lower()
    if method not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise ModelError(
            f"{path}: quantization_config.quant_method {method!r} is not read (those are: {known});"
            f" {REMEDY}"
        )
    return METHODS[method](_Fields(found, path))


class _Fields:
    """The fields of a quantization_config, and errors that name them."""

    def __init__(self, content: dict[str, Any], path: Path, prefix: str = "") -> None:
        self.content, self._path, self._prefix = content, path, prefix

    def get(self, name: str, default: Any = None) -> Any:
        value = self.content.get(name)
        return default if value is None else value

    def inner(self, name: str) -> _Fields | None:
        """The fields of an object within."""
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(name)
        return _Fields(value, self._path, f"{self._prefix}{name}.")

    def names(self, *fields: str) -> tuple[str, ...]:
        """The lists of names in some fields, together."""
        found: list[str] = []
        for name in fields:
            value = self.get(name, [])
            if not isinstance(value, list) or not all(map(_is_pattern, value)):
                raise self.refused(name)
            found += value
        return tuple(found)

    def require(self, name: str, default: Any, *served: Any) -> Any:
        """The value of a field, which must be one of those served."""
        value = self.get(name, default)
        if value not in served:
            raise self.refused(name, served)
        return value

    def refused(self, name: str, served: tuple[Any, ...] = ()) -> ModelError:
        words = f" (served: {', '.join(map(repr, served))})" if served else ""
        return ModelError(
            f"{self._path}: quantization_config.{self._prefix}{name} "
            f"{self.content.get(name)!r} is not served{words}; {REMEDY}"
        )


def _is_pattern(value: Any) -> bool:
    """Whether a value is a name, or an expression after `re:` or without."""
    try:
        re.compile(value.removeprefix("re:"))
    except (AttributeError, re.error):
        return False
    return True


def _group_size(fields: _Fields, *names: str) -> int:
    """Inputs under one scale, 0 for all."""
    name = next((name for name in names if name in fields.content), names[0])
    size = fields.get(name, 128)
    if size == -1:
        return 0
    fits = isinstance(size, int) and (size in GROUPS or (size > 0 and size % GROUPS[-1] == 0))
    if not fits:
        raise fields.refused(name, (*GROUPS, -1))
    return int(size)


def _awq(fields: _Fields) -> Quantization:
    fields.require("version", "gemm", "gemm", "GEMM")
    name = "bits" if "bits" in fields.content else "w_bit"
    fields.require(name, 4, 4)
    fields.require("zero_point", True, True)
    group = _group_size(fields, "group_size", "q_group_size")
    scheme = Scheme(storage="awq", group=group, has_zeros=True)
    return _everywhere("awq", scheme, fields)


def _gptq(fields: _Fields) -> Quantization:
    fields.require("bits", 4, 4)
    version = fields.require("checkpoint_format", "gptq", "gptq", "gptq_v2")
    if fields.get("dynamic"):  # modules with settings of their own
        raise fields.refused("dynamic")
    group = _group_size(fields, "group_size")
    offset = 1 if version == "gptq" else 0
    scheme = Scheme(storage="gptq", group=group, has_zeros=True, zero_offset=offset)
    return _everywhere(version, scheme, fields, quantizes_lm_head=bool(fields.get("lm_head")))


def _fp8(fields: _Fields) -> Quantization:
    """`quant_method: fp8`, of DeepSeek, Qwen, AutoFP8 and transformers' own."""
    fields.require("fmt", "e4m3", "e4m3")
    fields.require("scale_fmt", "float", "float")
    activations = fields.require("activation_scheme", "dynamic", "dynamic", "static")
    block = fields.get("weight_block_size")
    if block is None:
        inputs: Inputs = "by tensor" if activations == "static" else "by token"
        scheme = Scheme(storage="fp8", inputs=inputs)
    else:
        if block not in ([SPAN, SPAN], (SPAN, SPAN)):
            raise fields.refused("weight_block_size", ([SPAN, SPAN],))
        fields.require("activation_scheme", "dynamic", "dynamic")
        scheme = Scheme(storage="fp8-blocks", inputs="by span", block=(SPAN, SPAN))
    return _everywhere("fp8", scheme, fields)


def _fbgemm(fields: _Fields) -> Quantization:
    limit = fields.get("activation_scale_ub")
    if limit is not None and not (isinstance(limit, int | float) and limit > 0):
        raise fields.refused("activation_scale_ub")
    limit = None if limit is None else float(limit)
    return _everywhere(
        "fbgemm_fp8", Scheme(storage="fp8", inputs="by token", largest_input=limit), fields
    )


def _mxfp4(fields: _Fields) -> Quantization:
    """Experts alone are in mxfp4, by the names of their tensors."""
    return Quantization("mxfp4", (), expert_group=MXFP4_GROUP)


def _everywhere(
    name: str, scheme: Scheme, fields: _Fields, *, quantizes_lm_head: bool = False
) -> Quantization:
    """One scheme for all products but those that are named."""
    parts = fields.names("modules_to_not_convert", "ignored_layers", "ignore")
    ignored = () if quantizes_lm_head else ("lm_head",)
    return Quantization(name, (SchemeGroup(("Linear",), scheme),), ignored, parts)


def _compressed_tensors(fields: _Fields) -> Quantization:
    groups = fields.inner("config_groups")
    if groups is None:
        raise fields.refused("config_groups")
    for name in ("sparsity_config", "transform_config"):
        found = fields.get(name)
        if found and not (isinstance(found, dict) and found.get("format") == "dense"):
            raise fields.refused(name)
    whole = fields.get("format", "")
    made = []
    for name in groups.content:
        group = groups.inner(name)
        if group is None:
            raise groups.refused(name)
        scheme = _compressed_scheme(group, group.get("format", whole))
        made.append(SchemeGroup(group.names("targets"), scheme))
    return Quantization(f"compressed-tensors {whole}", tuple(made), fields.names("ignore"))


def _compressed_scheme(group: _Fields, layout: str) -> Scheme | None:
    weights, inputs = group.inner("weights"), group.inner("input_activations")
    if weights is None:
        if inputs is not None:
            raise group.refused("input_activations")
        return None
    if group.get("output_activations"):
        raise group.refused("output_activations")
    kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    if (kind, bits) == ("int", 4) and inputs is None:
        if layout not in ("pack-quantized", "mixed-precision", ""):
            raise group.refused("format", ("pack-quantized",))
        strategy = weights.require("strategy", "group", "group", "channel")
        group_size = _group_size(weights, "group_size") if strategy == "group" else 0
        return Scheme(
            storage="packed", group=group_size, has_zeros=not weights.get("symmetric", True)
        )
    if (kind, bits) == ("float", 8) and inputs is not None:
        return _compressed_fp8(weights, inputs)
    if inputs is None:
        raise weights.refused("num_bits", (4,) if kind == "int" else ())
    raise weights.refused("type", ("float",))


def _compressed_fp8(weights: _Fields, inputs: _Fields) -> Scheme:
    weights.require("symmetric", True, True)
    inputs.require("num_bits", 8, 8)
    inputs.require("type", "float", "float")
    strategy = weights.require("strategy", "tensor", "tensor", "channel", "block")
    if strategy == "block":
        if weights.get("block_structure") not in ([SPAN, SPAN], (SPAN, SPAN)):
            raise weights.refused("block_structure", ([SPAN, SPAN],))
        inputs.require("strategy", "group", "group")
        inputs.require("group_size", SPAN, SPAN)
        inputs.require("dynamic", False, True)
        return Scheme(storage="fp8-blocks", inputs="by span", block=(SPAN, SPAN))
    if inputs.require("dynamic", False, True, False):
        # A scale a tensor, made in each step, would depend on who is in the batch.
        inputs.require("strategy", "token", "token")
        return Scheme(storage="fp8", inputs="by token")
    inputs.require("strategy", "tensor", "tensor")
    return Scheme(storage="fp8", inputs="by tensor")


METHODS = {
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fbgemm_fp8": _fbgemm,
    "fp8": _fp8,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
"""The reader of each method."""
