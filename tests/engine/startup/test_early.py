"""What a start begins before torch is imported."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal

import pytest

from demo import MODEL_FOLDER
from engine.config import EngineConfig, ModelConfig, StructuredConfig
from engine.startup import early

GPU = EngineConfig(model=ModelConfig(model=str(MODEL_FOLDER)))


class Driver:
    """A driver's library with one GPU, or one that fails."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.called: list[str] = []
        self.retained = threading.Event()

    def cuInit(self, flags: int) -> int:  # noqa: N802
        self.called.append("init")
        return self.status

    def cuDeviceGet(self, device: object, index: int) -> int:  # noqa: N802
        self.called.append(f"device {index}")
        return 0

    def cuDevicePrimaryCtxRetain(self, context: object, device: object) -> int:  # noqa: N802
        self.called.append("context")
        self.retained.set()
        return 0


@pytest.fixture(autouse=True)
def _no_settings_of_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers were begun with."""
    modules: list[str] = []
    monkeypatch.setattr(early, "begin_workers", modules.append)
    monkeypatch.setattr(early, "is_cache_empty", lambda: True)
    return modules


def join_readers() -> None:
    """Wait for the thread that has weights read, which waits for the others."""
    for thread in threading.enumerate():
        if thread.name == early.READ_AHEAD:
            thread.join(timeout=10)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_weights_are_read_into_the_systems_cache_but_for_random_ones(
    load_format: Literal["auto", "dummy"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.safetensors", "b.safetensors", "c.bin"):
        (tmp_path / name).write_bytes(b"weights")
    (tmp_path / "0.safetensors").symlink_to(tmp_path / "missing")
    read: set[tuple[str, int, int]] = set()
    send = os.sendfile

    def noted(out: int, file: int, begin: int, count: int) -> int:
        sent = send(out, file, begin, count)
        read.add((Path(f"/proc/self/fd/{file}").resolve().name, begin, sent))
        return sent

    monkeypatch.setattr(os, "sendfile", noted)
    monkeypatch.setattr(early, "PIECE", 4)
    model = ModelConfig(model=str(tmp_path), device="cpu", load_format=load_format)
    early.begin_early(EngineConfig(model=model))
    join_readers()
    pieces = [(f"{name}.safetensors", *piece) for name in "ab" for piece in ((0, 4), (4, 3))]
    assert read == (set(pieces) if load_format == "auto" else set())


def test_no_more_is_read_ahead_than_half_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.safetensors").write_bytes(b"weights")
    begun: list[int] = []
    monkeypatch.setattr(early, "_send_piece", lambda path, begin, nowhere: begun.append(begin))
    monkeypatch.setattr(early, "PIECE", 4)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 2}.__getitem__)
    early._read_ahead(str(tmp_path))
    assert sorted(begun) == [0, 0, 4]


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, str(early.SPIN_COUNT)), ({"GOMP_SPINCOUNT": "0"}, "0"), ({"OMP_WAIT_POLICY": "x"}, None)],
)
def test_openmp_spins_as_long_as_it_is_told(given: dict[str, str], count: str | None) -> None:
    os.environ.update(given)
    early.begin_early(EngineConfig(model=ModelConfig(model="m", device="cpu")))
    assert os.environ.get("GOMP_SPINCOUNT") == count


def test_a_machine_without_a_driver_begins_nothing(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "_driver", lambda: None)
    assert early.begin_early(GPU) is None
    assert not begun


def test_a_gpu_gets_its_context_and_an_empty_cache_its_workers(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(0)
    monkeypatch.setattr(early, "_driver", lambda: driver)
    early.begin_early(GPU)
    assert driver.retained.wait(10)
    assert driver.called == ["init", "device 0", "context"]
    assert begun == ["sampling.sampler"]
    monkeypatch.setattr(early, "is_cache_empty", lambda: False)
    early.begin_early(GPU)
    assert len(begun) == 1


def test_a_driver_that_fails_is_left_to_torch() -> None:
    driver = Driver(100)
    early._make_context(driver)  # type: ignore[arg-type]
    assert driver.called == ["init"]


def test_the_tokenizer_is_begun_on_any_machine() -> None:
    structured = StructuredConfig(tokenizer=str(MODEL_FOLDER))
    config = EngineConfig(
        model=ModelConfig(model=str(MODEL_FOLDER), device="cpu"), structured=structured
    )
    reader = early.begin_early(config)
    assert reader is not None
    assert reader.result(8192, [0]).vocab_size == 8192
