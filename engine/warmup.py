"""`tailrace warmup`: builds ahead what would else be built when a server first starts.

tailrace warmup MODEL       on the machine that will serve it: fills the caches of FlashInfer
                            and Triton by building the engine once
tailrace warmup --kernels   FlashInfer's modules for the GPUs of FLASHINFER_CUDA_ARCH_LIST, as
                            an image needs them; takes no GPU, and a machine without a
                            compiler can load what it leaves
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from engine.attention.flashinfer import is_installed
from engine.config import ConfigError, EngineConfig, ModelConfig

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status and raises `ConfigError`."""
    parser = argparse.ArgumentParser(prog="tailrace warmup", description="Build kernels ahead.")
    parser.add_argument("model", nargs="?", help="folder or hub id")
    parser.add_argument(
        "--kernels", action="store_true", help="FlashInfer's modules, no GPU needed"
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16"])
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 128])
    args = parser.parse_args(argv)
    if args.kernels:
        build_kernels([DTYPES[name] for name in args.dtypes], args.head_dims)
    if args.model is not None:
        warm_up(EngineConfig(model=ModelConfig(model=args.model)))
    if args.model is None and not args.kernels:
        parser.error("give a MODEL, --kernels, or both")
    return 0


def warm_up(config: EngineConfig) -> None:
    """Build the engine of a configuration once: every kernel it can need is compiled by that."""
    from engine.build import build_engine  # imports whatever a model needs

    started = time.monotonic()
    info = build_engine(config).info
    print(f"warm for {config.model.model} on {info.device} in {time.monotonic() - started:.0f} s")


def build_kernels(dtypes: Sequence[torch.dtype], head_dims: Sequence[int]) -> None:
    """Build FlashInfer's modules and keep them where it looks before it compiles."""
    if not is_installed():
        raise ConfigError("FlashInfer is not installed: pip install 'tailrace[cuda]'")
    for spec in _module_specs(dtypes, head_dims):
        started = time.monotonic()
        spec.build(need_lock=True)
        spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spec.jit_library_path, spec.aot_path)
        print(f"{spec.name}: {time.monotonic() - started:.0f} s", flush=True)


def _module_specs(dtypes: Sequence[torch.dtype], head_dims: Sequence[int]) -> Iterator[Any]:
    from flashinfer.compilation_context import CompilationContext
    from flashinfer.jit.attention.modules import gen_batch_prefill_module
    from flashinfer.jit.sampling import gen_sampling_module

    archs = CompilationContext().TARGET_CUDA_ARCHS
    if not archs:
        raise ConfigError("no GPU, and FLASHINFER_CUDA_ARCH_LIST names none")
    backends = sorted({"fa3" if major == 9 else "fa2" for major, _ in archs})
    no_position, no_softcap, no_fp16_sums = 0, False, False
    for backend, dtype, head_dim, window in itertools.product(
        backends, dtypes, head_dims, (False, True)
    ):
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
