"""Builds kernels ahead of a server's first start: `tailrace warmup`.

tailrace warmup MODEL       on the machine that will serve it: fills the caches of FlashInfer
                            and Triton by building the engine once
tailrace warmup --kernels   FlashInfer's modules for the GPUs of FLASHINFER_CUDA_ARCH_LIST, as
                            an image needs them; takes no GPU, and a machine without a
                            compiler can load what it leaves
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from typing import Any

import torch
from msgspec import structs

from engine.attention.flashinfer import is_installed
from engine.config import ConfigError, EngineConfig

DTYPES = (torch.bfloat16,)
HEAD_DIMS = (64, 128)
"""Head sizes the image's modules are built for; others are built when a server first starts."""


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
