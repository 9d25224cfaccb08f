"""The project's files and rooms, for tests of its structure."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("sampling", "engine", "server")
"""Lowest first; imports go down."""

CONTRACTS = {
    "sampling": {
        *("batch", "edits", "noise", "params", "penalties", "race", "reference", "rows"),
        "vocab_shard",
    },
    "engine": {
        *("arrays", "awake", "batch", "config", "errors", "logs", "plan"),
        *("progress", "ranked", "rows", "speculative_config", "stats"),
        *("submission", "contracts", "memory", "messages"),
    },
    "server": {"config", "engine_metrics", "errors", "fronts", "metrics", "version"},
}
"""Modules that every room of their package may import; a folder stands for all in it. They import
one another and what is below their package, never a room."""

GROUND = {"sampling": ("device",)}
"""What is below a package's contracts: all may import it, and it imports nothing else of them."""

ROOMS = {
    "sampling": (
        *("kernels", "filters", "sharded", "paths", "speculative", "warm_up", "sampler"),
        "selftest",
    ),
    "engine": (
        *("kernels", "parallel", "attention", "models.weights", "adapters"),
        "models.formats",
        *("models.layers", "models.families", "models.fallback"),
        *("models", "weights", "speculation", "runner", "scoring", "planning", "structured"),
        *("step_pipeline", "step_parts", "control", "engine"),
        *("startup", "audit", "loop", "process", "parent", "client"),
    ),
    "server": (
        *("schema", "text", "work", "response_store", "http", "fleet", "structured"),
        *("generation", "conversation.parsing", "conversation", "scoring"),
        *("self_test", "context", "endpoints", "app", "bench", "remote"),
        *("command", "audit", "compare", "conformance"),
        *("fleet.ray_serve", "command.deploy", "cli"),
    ),
}
"""Folders and single modules from the bottom of each package to its top; imports go down."""

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for top in PACKAGES
    for path in sorted((ROOT / top).rglob("*.py"))
    if path.name != "__init__.py"
}
