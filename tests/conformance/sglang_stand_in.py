"""A plugin of pytest: servers and tokenizers of this project where SGLang's tests want theirs."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import transformers

from demo import MODEL_FOLDER
from tests.conformance.pool import ServerPool, long_model, spoken
from tests.serving.process import free_port

_PORT = free_port()
_URL = f"http://127.0.0.1:{_PORT}"
_MODEL = "meta-llama/Llama-3.1-8B-Instruct"  # some tests have it in their words
_KITS = Path(os.environ.get("SGLANG_KITS", "."))
RENAMED = {
    "--context-length": "--max-model-len",
    "--context-len": "--max-model-len",
    "--max-running-requests": "--max-num-seqs",
    "--enable-cache-report": "--enable-prompt-tokens-details",
}
PARSERS = {
    "llama3": "llama3_json",
    "qwen25": "hermes",
    "qwen": "hermes",
    "deepseek-r1": "deepseek_r1",
}
WITHOUT = (
    *("--max-total-tokens", "--max-total-token", "--decode-log-interval", "--grammar-backend"),
    *("--chunked-prefill-size", "--attention-backend", "--device", "--mem-fraction-static"),
)
BARE = ("--disable-overlap-schedule", "--disable-cuda-graph", "--trust-remote-code")
_pool = ServerPool(_PORT)


def _flags(model: str, api_key: str | None, other_args: Sequence[Any]) -> list[str]:
    """The flags of our server for those of theirs."""
    flags = [RENAMED.get(flag, flag) for flag in spoken(list(map(str, other_args)), WITHOUT, BARE)]
    for i, flag in enumerate(flags[:-1]):
        if flag in ("--tool-call-parser", "--reasoning-parser"):
            flags[i + 1] = PARSERS.get(flags[i + 1], flags[i + 1])
    if "--reasoning-parser" not in flags:  # a server of theirs then looks for no thoughts
        flags += ["--reasoning-parser", "none"]
    flags += ["--served-model-name", model, "--model", str(long_model(Path(model)))]
    return [*flags, *(("--api-key", api_key) if api_key else ())]


def popen_launch_server(
    model: str,
    base_url: str,
    timeout: float = 0,
    api_key: str | None = None,
    other_args: Sequence[Any] | None = None,
    **_: Any,
) -> SimpleNamespace:
    """A server with the flags that are asked for; its process is the pool's to end."""
    _pool.server(_flags(model, api_key, other_args or ()))
    return SimpleNamespace(pid=None, poll=lambda: None)


def get_tokenizer(*_: Any, **__: Any) -> Any:
    """The demo model's tokenizer."""
    return transformers.AutoTokenizer.from_pretrained(MODEL_FOLDER)


class CustomTestCase(unittest.TestCase):
    """A case as the standard library has it: nothing is tried again."""


_GIVEN = {
    "popen_launch_server": popen_launch_server,
    "kill_process_tree": lambda *_, **__: None,
    "get_tokenizer": get_tokenizer,
    "CustomTestCase": CustomTestCase,
    "DEFAULT_URL_FOR_TEST": _URL,
    "DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH": 120,
    "is_rust_server_built": lambda: False,
    "is_in_ci": lambda: False,
    "is_in_amd_ci": lambda: False,
}


class _Module(ModuleType):
    """A module that has whatever a test takes of it."""

    __path__ = []  # noqa: RUF012 - it is a package's

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _GIVEN:
            return _GIVEN[name]
        if name.startswith("DEFAULT_") and "NAME" in name:
            return _MODEL
        return MagicMock(name=name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the name; those of tests that files share are their own."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The module's specification, for a module of SGLang's."""
        if name.split(".")[0] != "sglang":
            return None
        if name.startswith("sglang.test.kits."):
            file = _KITS / f"{name.rpartition('.')[2]}.py"
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """Make the module."""
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is."""


def pytest_sessionfinish() -> None:
    """End the servers."""
    _pool.close()


# Files of a suite are imported before a plugin is asked for anything.
sys.meta_path.insert(0, _Finder())
