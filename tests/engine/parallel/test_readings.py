"""An adapter is there once every rank has read it, and the same files; else it is on none."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from engine.adapters import store as store_module
from engine.adapters.store import AdapterStore
from engine.config import AdaptersConfig
from engine.contracts.adapters import AdapterSource
from engine.contracts.runner import RunnerLostError
from engine.engine import Engine
from engine.errors import AdapterError, ControlError
from engine.messages.step_output import Finish
from engine.parallel.readings import RankReading, RankReadings, joined
from sampling.params import SamplingParams
from tests.engine.adapters.peft import source_of, write_adapter
from tests.engine.parallel.emulated import engine_of
from tests.engine.parallel.rank_engines import CONFIG, read
from tests.engine.traffic import FRONTEND, request

WAIT_S = 30.0
SOURCE = AdapterSource("a")
PROMPT, NUM_TOKENS = [5, 6, 7, 8], 6
GREEDY = SamplingParams(temperature=0.0)


class Made(NamedTuple):
    """Adapters `a` and `b` in a folder, and by name the tokens that are drawn with them."""

    folder: Path
    tokens: dict[str, list[int]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("adapters")
    base = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER).float().eval()
    models = {"": base}
    for seed, name in enumerate("ab"):
        models[name] = write_adapter(base, folder / name, seed, lora_alpha=16)
    tokens = {name: greedy(model) for name, model in models.items()}
    assert len({str(each) for each in tokens.values()}) == 3
    return Made(folder, tokens)


@torch.inference_mode()
def greedy(model: Any) -> list[int]:
    """What transformers draws for `Served.tokens`."""
    ids = list(PROMPT)
    for _ in range(NUM_TOKENS):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


class Served:
    """An engine of two ranks, the second of which begins to read when it is let.

    Attributes:
        ends: of loads.
    """

    def __init__(self, engine: Engine, second: Second) -> None:
        assert engine.adapters is not None
        self.engine, self.adapters, self._second = engine, engine.adapters, second
        first: Any = engine.adapters._reader
        self._first: AdapterStore = first._reader
        self.ends: list[ControlError | None] = []

    def begin(self, name: str, folder: Path, *, replaces: bool = False) -> None:
        """Begin to load an adapter, and let the first rank read it."""
        source = source_of(folder)
        self.adapters.load(name, source, replaces=replaces, done=self.ends.append)
        self.let_first_read()

    def let_first_read(self) -> None:
        for there in self._first._adapters.values():
            assert there.exception(WAIT_S) is None

    def end(self) -> ControlError | None:
        """Let the second rank read; returns how the load ended."""
        self.let_second_read()
        return self.ends.pop()

    def let_second_read(self) -> None:
        self._second.gates.get(timeout=WAIT_S).set()
        deadline = time.monotonic() + WAIT_S
        while self.adapters.readings:
            assert time.monotonic() < deadline, "waited for ever"
            self.adapters.settle()

    def load(self, name: str, folder: Path, *, replaces: bool = False) -> ControlError | None:
        self.begin(name, folder, replaces=replaces)
        return self.end()

    def submit(self, adapter: str) -> None:
        own: dict[str, Any] = {"params": GREEDY, "max_tokens": NUM_TOKENS, "adapter": adapter}
        self.engine.submit(FRONTEND, request(0, PROMPT, **own))

    def tokens(self, adapter: str = "") -> list[int]:
        self.submit(adapter)
        return read(self.engine).tokens[0, 0]

    def num_held(self) -> tuple[int, int]:
        """How many adapters each rank has, once it has come to what it was told so far."""
        self.tokens()
        second = self._second.store
        return len(self._first._adapters), 0 if second is None else len(second._adapters)


class Second:
    """The second rank's reading.

    Attributes:
        gates: of readings that it was told of; set, one lets it read.
        store: its own, once it was told to read.
    """

    def __init__(self) -> None:
        self.gates: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self.store: AdapterStore | None = None

    def hold(self, store: AdapterStore) -> None:
        """Keep all threads that read busy, and no other, until the next gate is set."""
        self.store, gate = store, threading.Event()
        for _ in range(store._threads._max_workers):
            store._threads.submit(gate.wait, WAIT_S)
        self.gates.put(gate)


Serve = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Starts engines, with limits of their adapters."""
    second, first, now = Second(), threading.current_thread(), AdapterStore.read

    def read_later(self: AdapterStore, number: int, source: AdapterSource) -> Future[bytes]:
        if threading.current_thread() is not first:
            second.hold(self)
        return now(self, number, source)

    monkeypatch.setattr(AdapterStore, "read", read_later)

    @contextmanager
    def start(**limits: Any) -> Iterator[Served]:
        adapters = AdaptersConfig(max_rank=4, **limits)
        config = structs.replace(CONFIG, tensor_parallel_size=2, adapters=adapters, structured=None)
        with engine_of(config) as (engine, _):
            yield Served(engine, second)

    return start


@pytest.fixture
def step(made: Made, tmp_path: Path) -> Path:
    """A folder of its own that holds the adapter `a`."""
    return Path(shutil.copytree(made.folder / "a", tmp_path / "step"))


def write(made: Made, name: str, step: Path) -> None:
    """Write an adapter in place."""
    shutil.copytree(made.folder / name, step, dirs_exist_ok=True)


def test_steps_go_on_while_a_rank_reads_and_the_load_ends_with_it(
    serve: Serve, made: Made, step: Path
) -> None:
    with serve() as served:
        served.begin("step", step)
        assert served.tokens() == made.tokens[""]
        served.adapters.settle()
        assert served.ends == []
        assert served.end() is None
        shutil.rmtree(step)
        assert served.tokens("step") == made.tokens["a"]
        served.adapters.unload("step")
        assert served.num_held() == (0, 0)


def test_a_folder_that_is_gone_before_all_have_read_it_is_refused(
    serve: Serve, made: Made, step: Path
) -> None:
    with serve() as served:
        served.begin("step", step)
        shutil.rmtree(step)
        refused = served.end()
        assert refused is not None
        assert refused.code == "adapter_refused"
        assert str(refused) == f"rank 1: adapter {str(step)!r} is not a folder"
        assert served.adapters.named == ()
        assert served.num_held() == (0, 0)
        write(made, "b", step)
        assert served.load("step", step) is None
        assert served.tokens("step") == made.tokens["b"]


def test_a_folder_that_is_written_between_two_readings_is_refused(
    serve: Serve, made: Made, step: Path
) -> None:
    """The name stays with what it stood for."""
    with serve() as served:
        assert served.load("step", step) is None
        served.begin("step", step, replaces=True)
        write(made, "b", step)
        refused = served.end()
        assert str(refused) == f"{step} was written while it was read: load it again"
        assert served.tokens("step") == made.tokens["a"]
        assert served.num_held() == (1, 1)
        assert served.load("step", step, replaces=True) is None
        assert served.tokens("step") == made.tokens["b"]
        assert served.num_held() == (1, 1)


def test_a_rank_without_memory_for_an_adapter_refuses_it(
    serve: Serve, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise MemoryError("no room")

    with serve() as served:
        served.begin("step", step)
        monkeypatch.setattr(store_module, "read_adapter", fail)
        refused = served.end()
        assert str(refused) == f"rank 1: {step} could not be read: MemoryError: no room"
        assert served.num_held() == (0, 0)


def test_an_adapter_that_is_read_again_is_the_same_on_all_ranks(
    serve: Serve, made: Made, step: Path
) -> None:
    """Of two adapters one is on the host; it is written when the first rank has it again."""
    with serve(max_cpu_loras=1) as served:
        assert served.load("step", step) is None
        assert served.load("other", made.folder / "b") is None
        assert served.num_held() == (1, 1)
        served.submit("step")
        served.let_first_read()
        write(made, "b", step)
        served.let_second_read()
        assert read(served.engine).finish[0, 0] == Finish.ADAPTER
        assert served.num_held() == (1, 1)
        write(made, "a", step)
        served.submit("step")
        served.let_second_read()
        assert read(served.engine).tokens[0, 0] == made.tokens["a"]
        assert served.num_held() == (1, 1)


def test_a_reading_of_all_ranks_ends_with_the_last() -> None:
    ranks = RankReadings(3)
    first, others = Future[bytes](), ranks.begin(7)
    whole = joined(SOURCE, [first, *others])
    ranks.end(2, RankReading(7, b"x"))
    first.set_result(b"x")
    assert not whole.done()
    ranks.end(1, RankReading(7, b"x"))
    assert whole.result(0) == b"x"


def test_a_reading_is_refused_with_the_reason_of_the_first_rank_that_has_one() -> None:
    ranks = RankReadings(3)
    first, others = Future[bytes](), ranks.begin(7)
    whole = joined(SOURCE, [first, *others])
    ranks.end(2, RankReading(7, error="no room"))
    ranks.end(1, RankReading(7, b"x"))
    first.set_result(b"y")
    with pytest.raises(AdapterError, match="rank 2: no room"):
        whole.result(0)


def test_nobody_waits_for_a_rank_that_is_lost() -> None:
    """Neither those who wait already, nor those who come, nor where others report yet."""
    ranks = RankReadings(3)
    begun = ranks.begin(7)
    ranks.lose("rank 1 ended")
    ranks.end(2, RankReading(7, b"x"))
    for reading in [*begun, *ranks.begin(8)]:
        with pytest.raises(RunnerLostError, match="rank 1 ended"):
            reading.result(0)
