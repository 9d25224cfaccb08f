"""What an engine imports before it reads a model's config, in processes of their own."""

from __future__ import annotations

import inspect
import subprocess
import sys

from demo import MODEL_FOLDER
from engine.startup import imports
from engine.startup.imports import import_config_class, modules_by_name

_PROGRAM = f"""
import sys
from engine.startup.imports import import_config_class
import_config_class({str(MODEL_FOLDER)!r})
import torch
from engine.config import ModelConfig
from engine.models.expected import expected_model
assert expected_model(ModelConfig(model={str(MODEL_FOLDER)!r}), torch.device("cpu")).vocab_size
assert "transformers.utils.type_validators" in sys.modules, "nothing checks configs any more"
import engine.startup.build
heavy = {{"torch._dynamo", "torch.distributed.fsdp", "transformers.generation.utils"}}
heavy &= set(sys.modules)
assert not heavy, heavy
from transformers.activations import ACT2FN
assert "silu" in ACT2FN
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["llama"] == "LlamaForCausalLM"
from engine.models.loader import load_model
on_transformers = ModelConfig(model={str(MODEL_FOLDER)!r}, model_impl="transformers")
assert load_model(on_transformers, torch.device("cpu")).vocab_size == 8192
"""


def test_a_config_is_read_without_transformers_inference_stack() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=120)


def test_a_module_is_found_by_name_and_a_frame_has_none() -> None:
    by_path = inspect.getmodule
    with modules_by_name():
        assert inspect.getmodule(import_config_class) is imports
        frame = inspect.getframeinfo(sys._getframe())
        source = inspect.getsource(import_config_class)
        assert inspect.getmodule(sys._getframe()) is None
    assert inspect.getmodule is by_path
    assert frame.code_context == ["        frame = inspect.getframeinfo(sys._getframe())\n"]
    assert source.startswith("def import_config_class(")
