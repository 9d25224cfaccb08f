"""What transformers reads of its models when it is imported, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BEGIN = """
import builtins, sys
opened, plain = [], open
def noted(file, *args, **options):
    opened.append(str(file))
    return plain(file, *args, **options)
builtins.open = noted
def num_read():
    return sum("/transformers/models/" in path and "/auto/" not in path for path in opened)
from engine.structured.without_models import leave_models_out
"""
_LATE = f"""{_BEGIN}
leave_models_out()
leave_models_out()
import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
assert CONFIG_MAPPING["qwen3"].__name__ == "Qwen3Config"
assert not hasattr(transformers, "__nothing__")
assert num_read() < 10, opened
"""
_NAMES = """
def names(module):
    every, known = sorted(module.__all__), vars(module)
    backends = {key: sorted(value) for key, value in known["_object_missing_backend"].items()}
    modules = {key: sorted(value) for key, value in known["_import_structure"].items()}
    found = [every, sorted(known["_class_to_module"].items()), sorted(known["_modules"])]
    return [*found, sorted(backends.items()), sorted(modules.items())]
import hashlib, transformers.models
both = names(transformers), names(sys.modules["transformers.models"])
print(hashlib.sha256(repr(both).encode()).hexdigest())
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "asked",
    [
        "from transformers import Qwen3Config as found",
        "found = transformers.models.llama.LlamaConfig",
        "import transformers.models as found; assert 'llama' in dir(found)",
    ],
)
def test_other_names_are_read_when_one_is_asked_for(asked: str) -> None:
    run(f"{_LATE}\n{asked}\nassert found and num_read() > 1000")


def test_a_name_that_no_model_has_is_missing() -> None:
    run(f"{_LATE}\nassert not hasattr(transformers, 'NoModel')\nassert num_read() > 1000")


def test_all_names_are_those_of_the_plain_package() -> None:
    plain = run(f"{_BEGIN}\nimport transformers{_NAMES}")
    late = run(f"{_LATE}\nfrom transformers import Qwen3Config\n{_NAMES}")
    assert late == plain


def test_a_package_that_is_imported_already_stays_as_it_is() -> None:
    before = f"{_BEGIN}\nimport transformers\nfound = list(sys.meta_path)"
    run(f"{before}\nleave_models_out()\nassert sys.meta_path == found")
