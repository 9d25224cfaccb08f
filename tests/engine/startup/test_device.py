"""The device that a configuration names, and whose context is begun ahead."""

from __future__ import annotations

import threading

import pytest
import torch
from msgspec import structs

from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.startup import device
from engine.startup.device import begin_context, resolve_device

CONFIG = EngineConfig(model=ModelConfig(model="m"))


def test_the_device_is_the_one_named_or_the_one_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, found in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        assert resolve_device(CONFIG.model) == torch.device(found)
        assert resolve_device(ModelConfig(model="m", device="cpu")) == torch.device("cpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--device cuda.*--device cpu"):
        resolve_device(ModelConfig(model="m", device="cuda"))


def test_the_context_is_begun_of_one_gpu_and_its_errors_are_left_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()

    def is_available() -> bool:
        begun.set()
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    on_cpu = structs.replace(CONFIG, model=ModelConfig(model="m", device="cpu"))
    begin_context(on_cpu)
    begin_context(structs.replace(CONFIG, tensor_parallel_size=2))
    assert not begun.wait(0.05)
    begin_context(CONFIG)
    assert begun.wait(5)


def test_triton_is_read_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    monkeypatch.setattr(device, "begin_reading_triton", begun.set)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device._make_context()
    assert not begun.is_set()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", _no_memory)
    device._make_context()
    assert begun.is_set()


def _no_memory(*_: object, **__: object) -> None:
    raise RuntimeError("out of memory")
