"""gpt-oss with experts in mxfp4: logits are transformers' on the weights that it dequantises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from engine.errors import ModelError
from engine.models.decoder import Decoder
from tests.engine.models.formats.gpt_oss import MODEL, write_gpt_oss
from tests.engine.models.formats.packers import rewrite
from tests.engine.models.serving import (
    assert_same_logits,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)


def test_logits(tmp_path: Path) -> None:
    reference = write_gpt_oss(tmp_path)
    assert isinstance(load(tmp_path), Decoder)
    assert_same_logits(load(tmp_path), reference)


@pytest.mark.parametrize("name", ["_blocks", "_scales"])
def test_another_byte_is_noticed(name: str, tmp_path: Path) -> None:
    reference = write_gpt_oss(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    own = tensors[f"model.layers.0.mlp.experts.gate_up_proj{name}"]
    own[..., 0] = own[..., 0] ^ 8 if name == "_blocks" else own[..., 0] + 2
    rewrite(tmp_path, tensors, None)
    ids = some_ids()
    assert (serve(load(tmp_path), ids) - expected(reference, ids)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("_blocks", lambda t: t[:, 1:], r"the config asks for \[5, 192, 2, 16\]"),
        ("_scales", lambda t: t.to(torch.int32), "is stored as I32, mxfp4 asks for U8"),
        ("_scales", lambda t: torch.full_like(t, 255), "holds scales that are no numbers"),
        ("_scales", None, "has no tensor 'model.layers.0.mlp.experts.gate_up_proj_scales'"),
    ],
)
def test_refused(name: str, change: Any, message: str, tmp_path: Path) -> None:
    write_gpt_oss(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    full = f"model.layers.0.mlp.experts.gate_up_proj{name}"
    tensor = tensors.pop(full)
    if change is not None:
        tensors[full] = change(tensor).contiguous()
    rewrite(tmp_path, tensors, None)
    with pytest.raises(ModelError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_another_limit_of_gates_is_refused(tmp_path: Path) -> None:
    config = hf.GptOssConfig(**MODEL.to_dict() | {"swiglu_limit": 5.0})
    write_tiny(config, tmp_path)
    with pytest.raises(ModelError, match=r"swiglu_limit 5.0 is not served, 7.0 is"):
        load(tmp_path)
