"""gpt-oss with experts in mxfp4: logits are transformers' on the weights that it dequantises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from engine.contracts.named_weights import WeightError
from engine.contracts.weights import BeginUpdate, WeightUpdateError
from engine.errors import ModelError
from engine.models.decoder import Decoder
from tests.engine.models.formats.gpt_oss import MODEL, write_gpt_oss
from tests.engine.models.formats.packers import rewrite
from tests.engine.models.rewriting import stored_tensors, text_logits
from tests.engine.models.serving import (
    assert_same_logits,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)
from tests.engine.weights.rooms import given, room_of, update


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


@pytest.mark.parametrize("check", [False, True])
def test_an_update_with_a_scale_that_is_no_number_is_refused(check: bool, tmp_path: Path) -> None:
    """As it comes, and not once other weights were written."""
    write_gpt_oss(tmp_path)
    model = load(tmp_path, max_model_len=128)
    before, room = text_logits(model), room_of(model)
    name = "model.layers.0.mlp.experts.down_proj_scales"
    old = stored_tensors(tmp_path)[name]
    broken = old.clone()
    broken[-1, -1, -1] = 255
    room.run(BeginUpdate(check=check))
    with pytest.raises(WeightUpdateError, match=f"{name}' holds scales that are no num") as error:
        room.run(given({"model.norm.weight": torch.zeros(64), name: broken}))
    assert error.value.code == "not_finite"
    assert torch.equal(text_logits(model), before)
    with pytest.raises(WeightError, match="no numbers"):
        model.named_weights()[name].write(broken)
    broken[-1, -1, -1] = 254
    update(room, given({name: broken}), check=check)
    assert torch.equal(model.named_weights()[name].read(), broken)
