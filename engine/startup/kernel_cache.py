"""Builds kernels ahead of a server's first start: `tailrace warmup`.

tailrace warmup MODEL       on the machine that will serve it: fills the caches of FlashInfer
                            and Triton by building the engine once
tailrace warmup --kernels   FlashInfer's modules for the GPUs of FLASHINFER_CUDA_ARCH_LIST, as
                            an image needs them; takes no GPU, and a machine without a
                            compiler can load what it leaves
tailrace warmup MODEL --pack FOLDER
                            on a GPU: what Triton compiles for a model, as a project to install
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import structs

from engine.attention.flashinfer import is_installed
from engine.config import ConfigError, EngineConfig
from sampling.device.kernel_packs import ENTRIES, MANIFEST, NAMESPACE, Manifest

DTYPES = (torch.bfloat16,)
HEAD_DIMS = (64, 128)
"""Head sizes the image's modules are built for; others are built when a server first starts."""
COMPILED = "compiled"
"""The folder beside the package, which further models add to."""
PACKED = (".cubin", ".json", ".so")
"""What a start reads of a kernel and its launcher; the rest are Triton's stages on the way."""

_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "tailrace-kernels-{target}"
version = "{version}"
description = "Compiled kernels of tailrace {version} for GPUs of {target}"
dependencies = ["triton=={triton}"]

[tool.setuptools]
packages = ["{namespace}.{target}"]

[tool.setuptools.package-data]
"*" = ["**/*"]
"""


def fill_kernel_caches(config: EngineConfig) -> None:
    """Build the engine of a configuration once, which compiles every kernel it can need."""
    from engine.startup.build import build_engine  # imports whatever a model needs

    started = time.monotonic()
    info = build_engine(structs.replace(config, wait_for_kernels=True)).info
    print(f"warm for {config.model.model} on {info.device} in {time.monotonic() - started:.0f} s")


def build_kernels() -> None:
    """Build FlashInfer's modules and put them where it looks before it compiles."""
    if not is_installed():
        raise ConfigError("FlashInfer is not installed: pip install 'tailrace[cuda]'")
    from flashinfer.jit.core import build_jit_specs

    specs, started = list(_module_specs()), time.monotonic()
    build_jit_specs(specs, skip_prebuilt=False)  # side by side, `MAX_JOBS` compilers at once
    for spec in specs:
        spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spec.jit_library_path, spec.aot_path)
        print(spec.name)
    print(f"{len(specs)} modules built in {time.monotonic() - started:.0f} s", flush=True)


def _module_specs() -> Iterator[Any]:
    from flashinfer.compilation_context import CompilationContext
    from flashinfer.jit.attention.modules import gen_batch_prefill_module
    from flashinfer.jit.sampling import gen_sampling_module

    archs = CompilationContext().TARGET_CUDA_ARCHS
    if not archs:
        raise ConfigError("no GPU, and FLASHINFER_CUDA_ARCH_LIST names none")
    backends = {"fa3" if major == 9 else "fa2" for major, _ in archs}
    kinds = sorted(itertools.product(backends, (False, True)))
    no_position, no_softcap, no_fp16_sums = 0, False, False
    for (backend, window), dtype, head_dim in itertools.product(kinds, DTYPES, HEAD_DIMS):
        yield gen_batch_prefill_module(
            backend,
            dtype,
            dtype,
            dtype,
            torch.int32,
            head_dim,
            head_dim,
            no_position,
            window,
            no_softcap,
            no_fp16_sums,
        )
    yield gen_sampling_module()


def pack_kernels(config: EngineConfig, folder: Path, version: str) -> None:
    """Start a model's engine once, and pack all that was compiled in a folder so far.

    Args:
        folder: becomes a project that pip installs.
        version: of this project.

    Raises:
        ConfigError: there is no GPU.
    """
    if not torch.cuda.is_available():
        raise ConfigError("--pack takes the kernels of a GPU, and there is none")
    os.environ["TRITON_CACHE_DIR"] = str(folder / COMPILED)
    fill_kernel_caches(config)
    target = "sm_{}{}".format(*torch.cuda.get_device_capability())
    manifest = write_pack(folder, target, version)
    size = sum(path.stat().st_size for path in folder.glob(f"{NAMESPACE}/{target}/**/*.*"))
    print(f"{len(manifest.files)} kernels and launchers for {target}, {size / 1e6:.1f} MB")


def write_pack(folder: Path, target: str, version: str) -> Manifest:
    """Write what is in the folder of compiled kernels as a package."""
    triton = importlib.metadata.version("triton")
    package = folder / NAMESPACE / target
    files: dict[str, dict[str, str]] = {}
    for path in sorted((folder / COMPILED).glob("*/*")):
        if path.suffix not in PACKED or path.name.startswith("__grp__"):
            continue
        copied = package / ENTRIES / path.parent.name / path.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
        files.setdefault(path.parent.name, {})[path.name] = _hash(copied)
    manifest = Manifest(triton, target, files)
    package.mkdir(parents=True, exist_ok=True)
    (package / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    words = {"target": target, "version": version, "triton": triton, "namespace": NAMESPACE}
    (folder / "pyproject.toml").write_text(_PROJECT.format(**words), encoding="utf-8")
    return manifest


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
