"""Packs of compiled kernels: read in place of compiling, unless they are not what was packed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.startup.kernel_cache import COMPILED, write_pack
from sampling.device.kernel_packs import ENTRIES, MANIFEST, NAMESPACE

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]
TARGET, NAME = "sm_90", "_add_kernel"
COMPILE = """
from sampling.device.kernel_packs import use_packs
use_packs()
from triton import compiler, jit
from triton.backends.compiler import GPUTarget
from tests.sampling.device.packable import _add_kernel
source = compiler.ASTSource(jit(_add_kernel), {"x_ptr": "*fp32", "count": "i32"}, {})
kernel = compiler.compile(source, target=GPUTarget("cuda", 90, 32))
print(len(kernel.asm["cubin"]))
"""


def compiled(cache: Path, *paths: Path) -> tuple[int, str]:
    """Compile the kernel in a process that finds packages there; its size, and what was logged."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, (ROOT, *paths)), *sys.path])
    command = (sys.executable, "-c", COMPILE)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout), done.stderr


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A project with a pack of one kernel, and the size of that kernel."""
    folder = tmp_path_factory.mktemp("pack")
    size, _ = compiled(folder / COMPILED)
    manifest = write_pack(folder, TARGET, "1.2.3")
    [names] = manifest.files.values()
    assert sorted(names) == [f"{NAME}.cubin", f"{NAME}.json"]
    return folder, size


def test_a_packed_kernel_is_not_compiled(packed: tuple[Path, int], tmp_path: Path) -> None:
    folder, size = packed
    (tmp_path / "cache").mkdir(mode=0o500)
    assert compiled(tmp_path / "cache", folder) == (size, "")
    assert not list((tmp_path / "cache").iterdir())


def test_a_kernel_that_is_not_what_was_packed_is_compiled(
    packed: tuple[Path, int], tmp_path: Path
) -> None:
    folder, size = packed
    [cubin] = folder.glob(f"{NAMESPACE}/{TARGET}/{ENTRIES}/*/*.cubin")
    raw = cubin.read_bytes()
    cubin.write_bytes(raw[:-1] + b"x")
    try:
        found, logged = compiled(tmp_path / "cache", folder)
    finally:
        cubin.write_bytes(raw)
    assert found == size
    assert "is not what was packed" in logged
    assert list((tmp_path / "cache").glob("*/*.cubin"))


def test_kernels_of_another_triton_are_not_used(packed: tuple[Path, int], tmp_path: Path) -> None:
    folder, size = packed
    [path] = folder.glob(f"{NAMESPACE}/{TARGET}/{MANIFEST}")
    raw = path.read_text()
    path.write_text(json.dumps(json.loads(raw) | {"triton": "1.0"}))
    try:
        found, logged = compiled(tmp_path / "cache", folder)
    finally:
        path.write_text(raw)
    assert found == size
    assert "are of Triton 1.0" in logged
    assert list((tmp_path / "cache").glob("*/*.cubin"))
