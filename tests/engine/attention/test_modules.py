"""Modules are built once, beside what else goes on, over stand-ins for FlashInfer's functions."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.attention import modules
from engine.attention.modules import Module, loading, wait_for_modules

MODULE = Module("fa3", torch.bfloat16, 128, has_window=False, has_softcap=False)


class Builds:
    """FlashInfer's functions: a module is compiled when `allowed` is set."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.is_compiled = False
        self.error: Exception | None = None
        self.nice: list[int] = []
        self.loaded: list[tuple[Any, ...]] = []

    def build(self, *, need_lock: bool) -> None:
        assert need_lock, "another process may build the same"
        assert self.allowed.wait(10)
        self.nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        self.is_compiled = self.error is None
        if self.error is not None:
            raise self.error

    def load(self, *arguments: Any) -> None:
        if self.error is not None:
            raise self.error
        assert self.is_compiled
        self.loaded.append(arguments)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builds]:
    made = Builds()
    generating = ModuleType("flashinfer.jit.attention.modules")
    prefill = ModuleType("flashinfer.prefill")
    generating.gen_batch_prefill_module = lambda *arguments: made  # type: ignore[attr-defined]
    prefill.get_batch_prefill_module = made.load  # type: ignore[attr-defined]
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.attention"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, generating.__name__, generating)
    monkeypatch.setitem(sys.modules, prefill.__name__, prefill)
    sys.modules["flashinfer"].prefill = prefill  # type: ignore[attr-defined]
    loading.cache_clear()
    yield made
    loading.cache_clear()


def test_a_build_waits_for_nobody_and_is_begun_once(builds: Builds) -> None:
    begun = loading(MODULE)
    assert not begun.future.done()
    assert loading(MODULE) is begun
    wait_for_modules([MODULE], builds=False)
    assert not begun.future.done()
    builds.allowed.set()
    wait_for_modules([MODULE])
    assert begun.future.result() is None
    assert builds.loaded == [MODULE.arguments]
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    if sys.platform == "linux":
        assert builds.nice == [max(own, modules.BUILD_NICE)]


def test_what_is_built_is_only_loaded(builds: Builds) -> None:
    builds.is_compiled = True
    wait_for_modules([MODULE], builds=False)
    assert builds.loaded
    assert not builds.nice


def test_nobody_waits_for_what_is_built_again(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "LOAD_S", 0.05)
    builds.is_compiled, stale = True, threading.Event()
    monkeypatch.setattr(builds, "load", lambda *arguments: stale.wait(10))
    sys.modules["flashinfer.prefill"].get_batch_prefill_module = builds.load  # type: ignore[attr-defined]
    wait_for_modules([MODULE], builds=False)
    assert not loading(MODULE).future.done()
    stale.set()
    wait_for_modules([MODULE])
    assert loading(MODULE).future.done()


def test_a_failed_build_is_told_and_ends_the_waiting(builds: Builds) -> None:
    builds.error = RuntimeError("Ninja build failed.")
    builds.allowed.set()
    wait_for_modules([MODULE])
    with pytest.raises(RuntimeError, match="Ninja"):
        loading(MODULE).future.result()


def test_arguments_are_those_of_flashinfer() -> None:
    """Names as in `get_batch_prefill_module` of FlashInfer 0.6: backend, dtypes of q, kv, o and
    indices, head sizes, positions, window, soft cap, sums in float16.
    """
    bf16 = torch.bfloat16
    windowed = MODULE._replace(has_window=True)
    assert windowed.arguments == (
        "fa3", bf16, bf16, bf16, torch.int32, 128, 128, 0, True, False, False
    )  # fmt: skip


def write_package(folder: Path, prefill: str) -> None:
    """A package that says when all of it is imported, whose module of prefill is as given."""
    package = folder / "flashinfer"
    package.mkdir()
    (package / "__init__.py").write_text("whole = True\n")
    (package / "prefill.py").write_text(prefill)


@pytest.mark.parametrize(
    ("prefill", "is_whole"),
    [("value = 5\n", False), ("from flashinfer import whole\nvalue = 5\n", True)],
)
def test_the_package_is_imported_whole_only_where_prefill_needs_it(
    prefill: str, is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, prefill)
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)
    for name in [name for name in sys.modules if name.startswith("flashinfer")]:
        del sys.modules[name]
    try:
        assert modules._import_prefill().value == 5
        assert hasattr(sys.modules["flashinfer"], "whole") == is_whole
        assert importlib.util.find_spec("flashinfer") is not None, "asked for later"
    finally:
        for name in [name for name in sys.modules if name.startswith("flashinfer")]:
            del sys.modules[name]
        sys.modules.update({k: v for k, v in before.items() if k.startswith("flashinfer")})


def test_one_that_is_not_built_holds_up_nobody_who_does_not_build(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a build takes: only what is built already is waited for."""
    monkeypatch.setattr(modules, "LOAD_S", 600.0)
    waiting = threading.Thread(target=wait_for_modules, args=([MODULE],), kwargs={"builds": False})
    waiting.start()
    waiting.join(30)
    has_returned = not waiting.is_alive()
    builds.allowed.set()
    waiting.join()
    assert has_returned
    assert not loading(MODULE).was_built
