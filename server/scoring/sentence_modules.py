"""What a model's `modules.json` says of its embeddings, as sentence-transformers writes it.

The modules are the model, a pooling, dense layers and a normalization. What is not honored becomes
a refusal that names it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import safetensors

from engine.arrays import Float32Array
from server.config import Activation, DenseLayer, Pooling, PoolingMode

_KINDS = {"Transformer", "Pooling", "Dense", "Normalize"}
_ORDER = re.compile(r"Transformer Pooling( Dense)*( Normalize)?")
_PREFIX = "pooling_mode_"
_MODES: dict[str, PoolingMode] = {"lasttoken": "last", "mean_tokens": "mean", "mean": "mean"}
_ACTIVATIONS: dict[str, Activation] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
}
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_VECTOR = "sentence_embedding"
"""What sentence-transformers calls the vector that layers read and write."""


class _NotServedError(Exception):
    """Something in the folder is not honored; the message names it."""


def pooling_of(model: str) -> Pooling:
    """What a model's folder says; where it says nothing, the last token's state, normalized."""
    folder = Path(model)
    try:
        modules = orjson.loads((folder / "modules.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return Pooling()
    try:
        return _read(folder, modules)
    except _NotServedError as error:
        return Pooling(refusal=str(error))


def _read(folder: Path, modules: list[dict[str, Any]]) -> Pooling:
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if unknown := sorted(set(kinds) - _KINDS):
        raise _NotServedError(f"its modules.json has {', '.join(unknown)}, which is not served")
    if not _ORDER.fullmatch(" ".join(kinds)):
        raise _NotServedError(
            f"its modules.json has {', '.join(kinds)}: only Transformer, Pooling, any number of "
            "Dense and at most one Normalize are served, in this order"
        )
    folders = [folder / str(module.get("path", "")) for module in modules]
    return Pooling(
        normalizes=kinds[-1] == "Normalize",
        mode=_mode(folders[1]),
        layers=tuple(
            _dense(own) for own, kind in zip(folders, kinds, strict=True) if kind == "Dense"
        ),
    )


def _mode(folder: Path) -> PoolingMode:
    """The one mode of a pooling, which newer versions write as a name and older ones as flags."""
    config = _config(folder)
    on = [name for name, value in config.items() if name.startswith(_PREFIX) and value is True]
    named = config.get("pooling_mode")
    asked = [name.removeprefix(_PREFIX) for name in on] if named is None else [str(named)]
    if len(asked) != 1 or asked[0] not in _MODES:
        raise _NotServedError(
            f"its pooling is {', '.join(asked) or 'not named'}: only lasttoken or mean_tokens "
            "alone is served"
        )
    mode = _MODES[asked[0]]
    if mode == "mean" and config.get("include_prompt") is False:
        raise _NotServedError("its pooling has include_prompt false, which is not served")
    return mode


def _dense(folder: Path) -> DenseLayer:
    config = _config(folder)
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, _VECTOR):
            raise _NotServedError(f"its {folder.name} has {name} {config[name]!r}, not {_VECTOR!r}")
    written = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if written not in _ACTIVATIONS:
        raise _NotServedError(f"its {folder.name} has the activation {written}: not served")
    tensors = _tensors(folder / "model.safetensors")
    weight = tensors.pop("linear.weight", None)
    bias = tensors.pop("linear.bias", None)
    if weight is None or weight.ndim != 2 or tensors:
        raise _NotServedError(f"its {folder.name} must hold linear.weight and at most linear.bias")
    shape = (config.get("out_features"), config.get("in_features"))
    if weight.shape != shape or (bias is not None and bias.shape != shape[:1]):
        raise _NotServedError(f"its {folder.name} has tensors of other shapes than its config.json")
    if (bias is None) is (config.get("bias", True) is True):
        raise _NotServedError(f"its {folder.name} has a linear.bias only in one of its files")
    return DenseLayer(weight=weight, bias=bias, activation=_ACTIVATIONS[written])


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config: dict[str, Any] = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise _NotServedError(f"its {folder.name}/config.json cannot be read") from error
    return config


def _tensors(path: Path) -> dict[str, Float32Array]:
    try:
        stored = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, safetensors.SafetensorError) as error:
        raise _NotServedError(
            f"its {path.parent.name}/{path.name} cannot be read; pickled weights are not loaded"
        ) from error
    return {name: _float32(tensor, path.parent.name) for name, tensor in stored}


def _float32(tensor: dict[str, Any], owner: str) -> Float32Array:
    data, shape = tensor["data"], tensor["shape"]
    if tensor["dtype"] == "BF16":  # the upper halves of float32
        halves = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(shape)
    if tensor["dtype"] not in _FLOATS:
        raise _NotServedError(f"its {owner} has tensors of type {tensor['dtype']}: not served")
    return np.frombuffer(data, dtype=_FLOATS[tensor["dtype"]]).astype(np.float32).reshape(shape)
