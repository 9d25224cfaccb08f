"""The engine's fingerprint: a hash of everything that decides the bits of its logits and draws.

Equal fingerprints have equal weights, formats, kernels, device class, libraries and settings.
Weights are the bytes of the safetensors files, whatever their names and folder; of a hub's cache,
whose files are named by their hashes, these names. Files are read on threads while the engine is
assembled: just loaded, they are in the system's page cache.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import structs

from engine.config import EngineConfig, ModelConfig
from engine.models.weights.folder import eos_token_ids, model_folder, read_json
from engine.models.weights.sources import weight_files

DIGITS = 16
PACKAGES = ("sampling", "engine")
"""Whose sources define kernels, layers, formats, the sampler and how steps are divided."""
LIBRARIES = ("torch", "triton", "flashinfer-python", "transformers", "llguidance")
HASHED_NAME = re.compile(r"[0-9a-f]{64}")
UNSEEN = frozenset({"_name_or_path", "transformers_version"})
"""Keys of a model's config that nothing is computed by."""

WITHOUT_EFFECT = frozenset(
    {"structured", "step_timeout_s", "report_times", "log_level", "log_format"}
)
"""Settings that no logit and no draw depends on."""
PLACES = {
    "model": {"model", "revision", "device", "trust_remote_code"},
    "speculation": {"model", "revision"},
    "sampling": {"seed", "max_logprobs"},
}
"""Of parts of the configuration, what says where a model is, or what requests may ask for."""


class Fingerprint:
    """The fingerprint of an engine whose weights were loaded, on its way.

    Args:
        config: the engine's.
        device: of the first rank.
    """

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._parts: list[Any] = [settings(config), device_class(device), libraries(), sources()]
        models = [config.model]
        speculation = config.speculation
        if speculation is not None and speculation.model is not None:
            drafter = structs.replace(
                config.model, model=speculation.model, revision=speculation.revision
            )
            models.append(drafter)
        self._pool = ThreadPoolExecutor(4, "fingerprint")
        self._weights = [self._begin(model) for model in models]

    def _begin(self, model: ModelConfig) -> list[Future[str]]:
        """Hash a model's weights on threads, and take its config now."""
        is_random = model.load_format == "dummy"
        folder = model_folder(model.model, model.revision, weights=not is_random)
        content = read_json(folder / "config.json")
        self._parts.append({key: content[key] for key in content if key not in UNSEEN})
        self._parts.append(eos_token_ids(folder))  # of generation_config.json, mostly
        if is_random:
            return []
        return [self._pool.submit(file_hash, path) for path in weight_files(folder)]

    def result(self) -> str:
        """Wait for the hash of all, `DIGITS` hexadecimal digits."""
        weights = [sorted(future.result() for future in each) for each in self._weights]
        self._pool.shutdown()
        text = json.dumps([*self._parts, weights], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    real = path.resolve()
    if real.parent.name == "blobs" and HASHED_NAME.fullmatch(real.name):
        return real.name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settings(config: EngineConfig) -> dict[str, Any]:
    """The settings that results may depend on: not where a model lies, logs, limits of time."""
    seen: dict[str, Any] = {
        k: v for k, v in msgspec.to_builtins(config).items() if k not in WITHOUT_EFFECT
    }
    for part, unseen in PLACES.items():
        if seen[part] is not None:
            seen[part] = {key: value for key, value in seen[part].items() if key not in unseen}
    return seen


def device_class(device: torch.device) -> list[str]:
    """The kind of device: a GPU's name and capability, or a CPU's instructions."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return [torch.cuda.get_device_name(device), f"{major}.{minor}"]
    return ["cpu", platform.machine(), torch.backends.cpu.get_cpu_capability()]


def libraries() -> dict[str, str]:
    """The versions of what computes beside this project."""
    found = {"cuda": torch.version.cuda or ""}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def sources() -> str:
    """The SHA-256 of this project's sources that compute."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
