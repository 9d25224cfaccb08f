"""The client's side of the socket, against a process and an engine that the test plays."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from engine import client as client_module
from engine import parent as module
from engine.client import MAX_HELD, EngineClient
from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.contracts.status import Beat, Failed, Progress, Ready, StatusLine
from engine.messages.codec import decode_message, encode
from engine.messages.request import FrontendMessage, Request, ScoringRequest
from engine.messages.step_output import Finish, StepOutput
from engine.parent import EngineProcess
from engine.submission import EngineDeadError
from sampling.params import SamplingParams
from tests.engine.some_info import INFO
from tests.engine.some_stats import STATS

CONFIG = EngineConfig(model=ModelConfig(model="none"))


class FakeStdin:
    def __init__(self, process: FakeProcess) -> None:
        self._process = process

    def close(self) -> None:
        self._process.end(0)


class FakeProcess:
    """An engine process that says what the test lets it say."""

    pid = 4321

    def __init__(self) -> None:
        self.stdin = FakeStdin(self)
        self.stdout = asyncio.StreamReader()
        self.killed = False
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def say(self, line: StatusLine) -> None:
        self.stdout.feed_data(msgspec.json.encode(line) + b"\n")

    def end(self, status: int) -> None:
        if not self._status.done():
            self.stdout.feed_eof()
            self._status.set_result(status)

    def kill(self) -> None:
        self.killed = True
        self.end(-9)

    async def wait(self) -> int:
        return await asyncio.shield(self._status)


class FakeEngineSide:
    """The engine's end of the socket."""

    def __init__(self, address: str) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        self._socket.bind(address)
        self._frontend = b""

    async def receive(self, *, beats: bool = False) -> FrontendMessage:
        """The next message, one that only tells of life if `beats`."""
        while True:
            self._frontend, raw = await asyncio.wait_for(self._socket.recv_multipart(), 30)
            message = decode_message(raw)
            if (message == FrontendMessage()) == beats:
                return message

    async def is_silent(self) -> bool:
        while await self._socket.poll(50):
            if decode_message((await self._socket.recv_multipart())[1]) != FrontendMessage():
                return False
        return True

    async def send(self, output: StepOutput) -> None:
        await self._socket.send_multipart([self._frontend, encode(output)])

    def close(self) -> None:
        self._socket.close(linger=0)


class Setup:
    def __init__(self, folder: Path) -> None:
        address = f"ipc://{folder}/engine"
        self.engine = FakeEngineSide(address)
        self.process = FakeProcess()
        self.link = EngineProcess(cast(Any, self.process), INFO, str(folder))
        self.client = EngineClient(self.link)


@pytest_asyncio.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    folder = tmp_path / "socket"
    folder.mkdir()
    setup = Setup(folder)
    yield setup
    setup.engine.close()
    await setup.client.close()
    assert not folder.exists()


def request(client: EngineClient, n: int = 1) -> Request:
    return Request(
        handle=client.new_handle(),
        prompt_token_ids=np.array([1, 2], dtype=np.int32),
        params=SamplingParams(),
        n=n,
        max_tokens=4,
    )


def scoring(client: EngineClient) -> ScoringRequest:
    return ScoringRequest(
        handle=client.new_handle(),
        query_token_ids=np.array([1], dtype=np.int32),
        item_token_ids=np.array([2], dtype=np.int32),
        item_lens=np.array([1], dtype=np.int32),
        num_read=np.array([1], dtype=np.int32),
        id_lists=np.array([[3]], dtype=np.int32),
    )


def output(handles: list[int], finish: Finish) -> StepOutput:
    count = len(handles)
    return StepOutput(
        handles=np.array(handles, dtype=np.int64),
        choices=np.zeros(count, dtype=np.int32),
        num_new=np.ones(count, dtype=np.int32),
        finish=np.full(count, finish, dtype=np.uint8),
        num_cached=np.zeros(count, dtype=np.int32),
        token_ids=np.arange(count, dtype=np.int32),
        stats=STATS,
    )


async def test_what_a_turn_submits_goes_in_one_message(setup: Setup) -> None:
    client = setup.client
    handles = [client.submit(request(client)).handle for _ in range(3)]
    client.abort(handles[1])
    client.abort(handles[2], 0)
    message = await setup.engine.receive()
    assert len(set(handles)) == 3
    assert [each.handle for each in message.submit] == handles
    assert message.abort == [(handles[1], -1), (handles[2], 0)]
    client.submit(request(client))
    assert len((await setup.engine.receive()).submit) == 1, "a later turn, a message of its own"
    assert await setup.engine.is_silent()


async def test_one_thing_alone_is_sent_too(setup: Setup) -> None:
    client = setup.client
    scored = client.score(scoring(client)).handle
    assert [each.handle for each in (await setup.engine.receive()).score] == [scored]
    client.abort(scored)
    assert (await setup.engine.receive()).abort == [(scored, -1)]


async def test_scoring_requests_do_not_wait_for_the_end_of_their_turn(setup: Setup) -> None:
    client = setup.client
    submitted = client.submit(request(client)).handle
    scored = [client.score(scoring(client)).handle for _ in range(2)]
    client.abort(scored[1])
    messages = [await setup.engine.receive() for _ in range(3)]
    assert [each.handle for each in messages[0].submit] == [submitted]
    assert [[each.handle for each in message.score] for message in messages] == [
        scored[:1],
        scored[1:],
        [],
    ]
    assert messages[2].abort == [(scored[1], -1)]
    assert await setup.engine.is_silent()


async def test_a_burst_is_split_so_that_the_engine_can_begin(setup: Setup) -> None:
    for _ in range(2 * MAX_HELD + 3):
        setup.client.submit(request(setup.client))
    sizes = [len((await setup.engine.receive()).submit) for _ in range(3)]
    assert sizes == [MAX_HELD, MAX_HELD, 3]
    assert await setup.engine.is_silent()


async def test_only_unfinished_requests_are_aborted(setup: Setup) -> None:
    client = setup.client
    submission = client.submit(request(client))
    await setup.engine.receive()
    await setup.engine.send(output([submission.handle], Finish.STOP))
    assert [len(entries) async for entries in submission] == [1]
    client.abort(submission.handle)
    client.abort(999)
    assert await setup.engine.is_silent()


async def test_what_comes_just_before_something_is_sent_is_read(setup: Setup) -> None:
    client = setup.client
    submission = client.submit(request(client))
    await setup.engine.receive()
    await setup.engine.send(output([submission.handle], Finish.STOP))
    time.sleep(0.2)  # noqa: ASYNC251 - it comes, and the event loop does not know yet
    client._send_now(FrontendMessage())
    async with asyncio.timeout(10):
        assert [len(entries) async for entries in submission] == [1]


async def test_outputs_reach_their_submission_and_the_latest_statistics_are_kept(
    setup: Setup,
) -> None:
    client = setup.client
    before = client.stats
    assert before is None
    first, second = client.submit(request(client)), client.submit(request(client))
    await setup.engine.receive()
    await setup.engine.send(output([second.handle], Finish.RUNNING))
    [entry] = await asyncio.wait_for(anext(second), 30)
    assert entry.token_ids.tolist() == [0]
    assert client.stats == STATS
    later = msgspec.structs.replace(output([second.handle], Finish.RUNNING), stats=None)
    await setup.engine.send(later)
    await asyncio.wait_for(anext(second), 30)
    assert client.stats == STATS, "an output without statistics leaves the last ones"
    assert first.take() == []


async def test_the_end_of_the_process_fails_what_waits_and_what_comes(setup: Setup) -> None:
    client = setup.client
    submission = client.submit(request(client))
    await setup.engine.receive()
    setup.process.say(Failed("no memory"))
    setup.process.end(4)
    with pytest.raises(EngineDeadError, match=r"status 4.*no memory"):
        await asyncio.wait_for(anext(submission), 30)
    assert "status 4" in (client.failure() or "")
    with pytest.raises(EngineDeadError, match="no memory"):
        client.submit(request(client))
    with pytest.raises(EngineDeadError, match="no memory"):
        client.score(scoring(client))
    client.abort(submission.handle)
    assert await setup.engine.is_silent()


async def test_a_client_without_requests_tells_that_it_lives(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setup.engine.receive(beats=True)
    monkeypatch.setattr(client_module, "BEAT_S", 0.01)
    heard = [await setup.engine.receive(beats=True) for _ in range(3)]
    assert heard == [FrontendMessage()] * 3


async def test_silence_is_a_failure_and_a_heartbeat_ends_it(setup: Setup) -> None:
    awake = setup.link._awake = cast(Any, SimpleNamespace(seconds=0.0, tick=lambda: 0.0))
    setup.process.say(Beat())
    await asyncio.sleep(0.01)
    awake.seconds += module.SILENCE_S
    assert setup.client.failure() is None
    awake.seconds += 0.5
    assert "silent for" in (setup.client.failure() or "")
    setup.process.say(Beat())
    await asyncio.sleep(0.01)
    assert setup.client.failure() is None


async def test_silence_does_not_hide_why_the_process_ended(setup: Setup) -> None:
    awake = setup.link._awake = cast(Any, SimpleNamespace(seconds=0.0, tick=lambda: 0.0))
    waiting = setup.client.submit(request(setup.client))
    setup.process.say(Beat())
    setup.process.say(Failed("no memory"))
    setup.process.end(4)
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(anext(waiting), 30)
    awake.seconds += module.SILENCE_S + 1
    assert "no memory" in (setup.client.failure() or "")


async def test_an_engine_that_does_not_close_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    setup = Setup(tmp_path)
    monkeypatch.setattr(setup.process.stdin, "close", lambda: None)
    setup.engine.close()
    await setup.client.close()
    assert setup.process.killed


def program(*lines: StatusLine, status: int = 0) -> tuple[str, ...]:
    """A process that says some lines and ends."""
    said = b"".join(msgspec.json.encode(line) + b"\n" for line in lines).decode()
    code = f"import sys; sys.stdin.readline(); print({said!r}, end=''); sys.exit({status})"
    return (sys.executable, "-c", code)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (program(Failed("no such file")), ["no such file"]),
        (program(status=4), ["status 4", "log", "--gpu-memory-utilization", "--max-model-len"]),
    ],
)
async def test_why_an_engine_did_not_start(
    command: tuple[str, ...], words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "COMMAND", command)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        await EngineClient.start(CONFIG)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == [], "its folder is gone"


@pytest.mark.parametrize("times", [1, 2])
async def test_a_start_that_is_cancelled_leaves_nothing(
    times: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where it is cancelled again while it waits for the end of its process."""
    code = "import sys, time; sys.stdin.readline(); time.sleep(600)"
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", code))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    starting = asyncio.create_task(EngineClient.start(CONFIG))
    await asyncio.sleep(0.2)  # whatever it has come to
    for _ in range(times):
        starting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert os.listdir(tmp_path) == [], "its folder is gone"


async def test_a_started_engine_has_told_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND", program(Ready(INFO)))
    client = await EngineClient.start(CONFIG)
    assert client.info == INFO
    await client.close()


async def test_the_progress_of_a_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    news = [("loading weights", 0, 0), ("loading weights", 3, 9), ("loading weights", 1, 1)]
    lines = [Progress(*each) for each in news]
    monkeypatch.setattr(module, "COMMAND", program(*lines, Ready(INFO)))
    reported: list[tuple[str, int, int]] = []
    client = await EngineClient.start(CONFIG, lambda *each: reported.append(each))
    assert reported == news
    await client.close()
