"""The supervisor against fronts that a test plays: starts, deaths, drains and ends."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from engine.config import ConfigError
from engine.submission import EngineDeadError
from server.command.fronts import supervisor as module
from server.command.fronts.front import FrontConfig
from server.command.fronts.front_lines import FailAll, FrontStart
from server.command.fronts.supervisor import Fronts
from server.config import ServerConfig
from server.fronts import FrontTable, make_table_file
from server.http.admission import ShutdownError
from server.metrics import SHARED_FOLDER
from tests.engine.some_info import INFO
from tests.server.conftest import eventually

PROGRAM = """
import json, os, sys
start = json.loads(sys.stdin.readline())
log = open(os.environ["FOLDER"] + f"/{start['index']}", "a", buffering=1)
log.write(os.environ["SHARED_FOLDER"] + "\\n")
def say(line, **fields):
    print(json.dumps({"line": line, **fields}), flush=True)
BEHAVIOUR
"""
DUTIFUL = """
say("loaded")
for raw in sys.stdin:
    line = json.loads(raw)
    log.write(raw)
    if line["line"] == "attach":
        say("answering")
    if line["line"] == "drain":
        say("drained", in_time=start["index"] == 0)
    if line["line"] == "end" or line.get("reason") == "die":
        break
"""
REFUSES = "say('failed', message='no such tokenizer'); sys.exit(2)"
BREAKS = "sys.exit(3)"
DIES_ANSWERING = "say('loaded'); sys.stdin.readline(); say('answering'); sys.exit(4)"
DEAF = "say('loaded'); sys.stdin.readline(); say('answering'); import time; time.sleep(600)"


class FakeEngine:
    """An `EngineProcess` that fails when the test says so."""

    info = INFO
    pid = 1
    address = "ipc:///nowhere"

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.reason: str | None = None

    def failure(self) -> str | None:
        return self.ended.result() if self.ended.done() else self.reason


class Setup:
    """Fronts of one behaviour, and what each of them was sent."""

    def __init__(self, folder: Path, behaviour: str, count: int) -> None:
        program = PROGRAM.replace("BEHAVIOUR", behaviour)
        program = program.replace('"SHARED_FOLDER"', repr(SHARED_FOLDER))
        self.folder = folder
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.table_fd = make_table_file(count)
        self.table = FrontTable(count, fd=self.table_fd)
        self.engine = FakeEngine()
        front = FrontConfig(
            http=ServerConfig(model_names=("m",)),
            tokenizer="t",
            revision=None,
            trust_remote_code=False,
            server_options={},
        )
        about: dict[str, Any] = {"listener_fd": self.listener.fileno(), "table_fd": self.table_fd}
        starts = [
            FrontStart(
                front=front,
                index=index,
                num_fronts=count,
                log_level="info",
                log_format="text",
                http_log_level=None,
                **about,
            )
            for index in range(count)
        ]
        self.command = (sys.executable, "-c", program)
        self.fronts = Fronts(starts, self.listener, self.table, "shared")

    async def start(self) -> None:
        await self.fronts.load()
        await self.fronts.attach(cast(Any, self.engine))

    def sent(self, index: int) -> list[str]:
        return (self.folder / str(index)).read_text().splitlines()

    async def close(self) -> None:
        await self.fronts.close()
        self.listener.close()
        os.close(self.table_fd)


SetupOf = Callable[..., Setup]


@pytest_asyncio.fixture
async def setup_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SetupOf]:
    setups: list[Setup] = []
    monkeypatch.setenv("FOLDER", str(tmp_path))

    def make(behaviour: str, count: int = 2) -> Setup:
        setup = Setup(tmp_path, behaviour, count)
        monkeypatch.setattr(module, "COMMAND", setup.command)
        setups.append(setup)
        return setup

    yield make
    for setup in setups:
        await setup.close()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [(REFUSES, "no such tokenizer"), (BREAKS, r"status 3\) while starting; the log lines")],
)
async def test_a_front_that_cannot_start_ends_the_start(
    setup_of: SetupOf, behaviour: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        await setup_of(behaviour).start()


async def test_all_are_told_of_the_engine_and_of_its_failures(setup_of: SetupOf) -> None:
    setup = setup_of(DUTIFUL)
    await setup.start()
    setup.engine.reason = "silent"
    await eventually(lambda: '"reason":"silent","ended":false' in setup.sent(1)[-1], 30)
    setup.engine.reason = None
    await eventually(lambda: '"reason":null,"ended":false' in setup.sent(1)[-1], 30)
    setup.engine.ended.set_result("killed")
    for index in range(2):
        await eventually(lambda i=index: "killed" in setup.sent(i)[-1], 30)  # type: ignore[misc]
        assert setup.sent(index)[0] == "shared"
        assert '"line":"attach"' in setup.sent(index)[1]
        assert '"reason":"killed","ended":true' in setup.sent(index)[-1]


async def test_a_front_that_dies_is_started_again_and_its_row_is_cleared(
    setup_of: SetupOf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.01)
    setup = setup_of(DUTIFUL)
    await setup.start()
    dead = FrontTable(2, 1, setup.table_fd)
    dead.add_in_flight(7)
    setup.engine.reason = "silent"
    await eventually(lambda: "silent" in setup.sent(1)[-1], 30)
    setup.fronts._children[1].send(FailAll("die"))
    await eventually(lambda: len(setup.sent(1)) >= 7, 30)
    before, after = setup.sent(1)[:4], setup.sent(1)[4:]
    assert "die" in before[-1]
    assert after[0] == "shared"
    assert '"line":"attach"' in after[1]
    assert "silent" in after[2], "what the others have been sent already"
    assert setup.table.num_in_flight == 0
    assert "front 1 ended (status 0)" in caplog.text
    assert not setup.fronts._too_many_deaths.is_set()


async def test_too_many_deaths_end_the_server(
    setup_of: SetupOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 1e-4)
    setup = setup_of(DIES_ANSWERING, 1)
    await setup.start()
    await asyncio.wait_for(setup.fronts.ended(), 60)
    assert caplog.text.count("front 0 ended (status 4)") == module.MAX_DEATHS + 1
    assert "too many have" in caplog.text


async def test_a_front_that_was_killed(
    setup_of: SetupOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 600.0)
    setup = setup_of(DIES_ANSWERING.replace("sys.exit(4)", "os.kill(os.getpid(), 9)"), 1)
    await setup.start()
    await eventually(lambda: "starting another" in caplog.text, 30)
    assert "front 0 was killed (signal 9), perhaps because memory ran out, with" in caplog.text


def test_pauses_grow_with_deaths_and_old_deaths_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    fronts = cast(Any, SimpleNamespace(_deaths=[]))
    pauses = [Fronts._pause_after_death(fronts) for _ in range(module.MAX_DEATHS + 1)]
    assert pauses == [*(module.RESTART_S * 2**i for i in range(module.MAX_DEATHS)), None]
    clock.now += module.DEATHS_S
    assert Fronts._pause_after_death(fronts) == module.RESTART_S


async def test_a_drain_is_over_when_all_say_so_and_nobody_is_started_again(
    setup_of: SetupOf,
) -> None:
    setup = setup_of(DUTIFUL)
    await setup.start()
    assert not await setup.fronts.drain(30), "the second says it was not in time"
    setup.fronts.fail_all(ShutdownError())
    setup.fronts.fail_all(EngineDeadError("lost"))
    await setup.fronts.close()
    for index in range(2):
        drain, shutdown, lost, end = setup.sent(index)[-4:]
        assert '"timeout_s":30' in drain
        assert '"line":"fail_all","reason":null' in shutdown
        assert '"reason":"lost"' in lost
        assert '"line":"end"' in end


async def test_a_stopped_front_holds_up_neither_drain_nor_end(
    setup_of: SetupOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MARGIN_S", "CLOSE_S"):
        monkeypatch.setattr(module, name, 0.05)
    setup = setup_of(DEAF)
    await setup.start()
    assert not await setup.fronts.drain(0.05)
    await asyncio.wait_for(setup.fronts.close(), 60)
    assert [child.process.returncode for child in setup.fronts._children] == [-9, -9]


async def test_an_end_while_fronts_wait_for_the_engine(setup_of: SetupOf) -> None:
    setup = setup_of(DUTIFUL)
    await setup.fronts.load()
    await setup.fronts.close()
    assert [child.process.returncode for child in setup.fronts._children] == [0, 0]


async def test_an_end_while_a_front_waits_to_be_started_again(
    setup_of: SetupOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 600.0)
    setup = setup_of(DUTIFUL)
    await setup.start()
    setup.fronts._children[1].send(FailAll("die"))
    await eventually(lambda: "starting another in 600 s" in caplog.text, 30)
    assert await setup.fronts.drain(30)
    await asyncio.wait_for(setup.fronts.close(), 60)
    assert len(setup.sent(1)) == 3, "it was not started again"
