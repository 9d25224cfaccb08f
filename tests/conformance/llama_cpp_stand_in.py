"""A plugin of pytest: servers of this project where llama.cpp's tests want theirs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.conformance.pool import ServerPool

MAX_MODEL_LEN = 2048
NOT_HERE = (
    *("server_embeddings", "server_reranking", "lora_files", "mmproj_url", "enable_ctx_shift"),
    *("models_preset", "models_dir", "mcp_servers_config", "mcp_servers_json", "server_tools"),
    *("spec_type", "slot_save_path", "sleep_idle_seconds", "gcp_compat", "ui_mcp_proxy"),
)
"""Settings without which a test means nothing, and that no flag here means."""
_pool = ServerPool()


def _flags(server: Any) -> list[str]:
    """The flags of our server for the settings of theirs."""
    if missing := [name for name in NOT_HERE if getattr(server, name, None)]:
        raise RuntimeError(f"settings without a flag here: {', '.join(missing)}")
    flags = ["--served-model-name", server.model_alias or "default", "--allow-any-model-name"]
    flags += ["--max-model-len", str(min(server.n_ctx or MAX_MODEL_LEN, MAX_MODEL_LEN))]
    if server.api_key:
        flags += ["--api-key", server.api_key]
    if server.chat_template_file:
        flags += ["--chat-template", str(Path(server.chat_template_file).resolve())]
    elif server.chat_template and "{" in server.chat_template:
        flags += ["--chat-template", server.chat_template]
    if server.cors_origins:
        flags += ["--allowed-origins", f'["{server.cors_origins}"]']
    return flags


def _start(server: Any, timeout_seconds: int = 60) -> None:
    url = _pool.server(_flags(server)).url
    server.server_port, server.ready = int(url.rpartition(":")[2]), True


def pytest_sessionfinish() -> None:
    """End the servers."""
    _pool.close()


# The suite's own fixtures are imported before a plugin is asked for anything.
sys.modules["wget"] = ModuleType("wget")
_utils: Any = importlib.import_module("utils")
_utils.ServerProcess.start = _start
_utils.ServerProcess.stop = lambda server: None
_utils.ServerPreset.load_all = staticmethod(lambda: None)
