"""A plugin of pytest: our servers and tokenizers where vLLM's live tests want theirs."""

from __future__ import annotations

import base64
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import transformers

_from_pretrained = transformers.AutoTokenizer.from_pretrained

vllm_stand_in: Any = importlib.import_module("vllm_stand_in")  # it replaces what was just kept

from demo import MODEL_FOLDER  # noqa: E402
from tests.serving.process import Server  # noqa: E402

sys.modules["pybase64"] = base64

__all__ = [
    "ROCM_ENV_OVERRIDES",
    "ROCM_EXTRA_ARGS",
    "VLLM_PATH",
    "LocalAssetServer",
    "RemoteOpenAIServer",
    "multi_gpu_only",
    "requires_fp8",
]

VLLM_PATH = Path(os.environ.get("VLLM_FOLDER", "."))
ROCM_ENV_OVERRIDES: dict[str, str] = {}
ROCM_EXTRA_ARGS: list[str] = []
multi_gpu_only = requires_fp8 = pytest.mark.skip("needs GPUs")
WITHOUT = (
    *("--dtype", "--seed", "--max-lora-rank", "--max-cpu-loras", "--max-loras"),
    *("--runner", "--reasoning-config", "--gpu-memory-utilization"),
    *("--tokenizer_mode", "--load_format", "--load-format", "--config_format", "--port"),
    "--show-hidden-metrics-for-version",
)
BARE = (
    *("--enable-lora", "--enable-tokenizer-info-endpoint", "--trust-remote-code"),
    "--skip-tokenizer-init",
)
THINKING = "Qwen3"
"""What the names of models have in them that think before they answer, as the demo model does."""
LORA = ("--lora-modules",)
MAX_MODEL_LEN = 2048


class LocalAssetServer:
    """Pictures, which no model here reads."""

    def url_for(self, name: str) -> str:
        return f"http://127.0.0.1:1/{name}"


@pytest.fixture
def local_asset_server() -> LocalAssetServer:
    return LocalAssetServer()


def _tokenizer(model: Any = "", *_: Any, **options: Any) -> Any:
    """The demo model's, with the template of the server that has the model's name."""
    found = _from_pretrained(MODEL_FOLDER)
    if THINKING not in str(options.get("tokenizer_name", model)):
        from tests.conformance.pool import without_thoughts

        found.chat_template = without_thoughts()
    return found


class _ModelConfig:
    """What a test asks of a model's configuration."""

    def __init__(self, **_: Any) -> None:
        pass

    def get_vocab_size(self) -> int:
        """The number of tokens with their own logits."""
        config = json.loads((MODEL_FOLDER / "config.json").read_text())
        return int(config["vocab_size"])


transformers.AutoTokenizer.from_pretrained = _tokenizer
vllm_stand_in.tokenizer = _tokenizer
importlib.import_module("vllm.config").ModelConfig = _ModelConfig  # type: ignore[attr-defined]


def _folder(model: str, **_: Any) -> str:
    """Where a model is: the folder that is made for its name."""
    return model


_weights = "vllm.model_executor.model_loader.weight_utils"
importlib.import_module(_weights).download_weights_from_hf = _folder  # type: ignore[attr-defined]


def _flags(model: str, args: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The flags of our server for those of theirs; an adapter is a name of the model."""
    from tests.conformance.pool import long_model, spoken, template_without_thoughts

    args = [str(arg) for arg in args]
    adapters = [args[i + 1].partition("=")[0] for i, arg in enumerate(args) if arg in LORA]
    flags = spoken(args, (*WITHOUT, *LORA), BARE)
    flags = ["--max-model-len", str(MAX_MODEL_LEN), *flags, "--reasoning-field", "reasoning"]
    flags += ["--metrics-prefix", "vllm:"]
    flags += ["--model", str(long_model(Path(model)))]
    if "VLLM_API_KEY" in environment:
        flags += ["--api-key", environment["VLLM_API_KEY"]]
    if "--served-model-name" not in flags:
        flags += ["--served-model-name", model, *adapters]
    if THINKING not in model and "--chat-template" not in flags:
        flags += ["--chat-template", str(template_without_thoughts(Path()))]
    return flags


class RemoteOpenAIServer:
    """Stands for vLLM's: a server of the demo model with the flags that it is given."""

    DUMMY_API_KEY = "token-abc123"
    _pool: Any = None

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        env_dict: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        from tests.conformance.pool import ServerPool

        if RemoteOpenAIServer._pool is None:
            RemoteOpenAIServer._pool = ServerPool()
        flags = _flags(model, vllm_serve_args, env_dict or {})
        self._server: Server = RemoteOpenAIServer._pool.server(flags)

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    @property
    def url_root(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return int(self._server.url.rpartition(":")[2])

    host = "127.0.0.1"
    show_hidden_metrics = False

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *(part.strip("/") for part in parts if part)))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 280} | options

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url_for("v1"), **self._options(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), **self._options(options))

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url_root, **self._options(options))

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url_root, **self._options(options))


def pytest_sessionfinish() -> None:
    """End the servers."""
    if RemoteOpenAIServer._pool is not None:
        RemoteOpenAIServer._pool.close()
    sys.stdout.flush()
