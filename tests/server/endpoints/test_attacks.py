"""Small requests that ask for much: what others wait for meanwhile is bounded."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from engine.messages.request import Request
from engine.submission import Submission
from tests.fakes import FakeEngine
from tests.server.conftest import Site, eventually, on_a_port
from tests.server.slowness import slowness

LONGER_S = 0.2
"""A stranger's one-token request waits at most so much longer."""


class _Patient(FakeEngine):
    """Works at requests of one choice and lets others wait, so that the server alone is measured.

    Attributes:
        waiting: handles of the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []

    def submit(self, request: Request) -> Submission:
        if request.n == 1:
            return super().submit(request)
        self.waiting.append(request.handle)
        return Submission(request.handle, request.n)

    def abort(self, handle: int, choice: int = -1) -> None:
        self.aborted.append((handle, choice))


def large_stops() -> list[str]:
    """Stop strings whose automaton is as large as one can be."""
    return [
        "".join(chr(0x4E00 + (i * 512 + j) * 7 % 20_000) for j in range(512)) for i in range(128)
    ]


ATTACKS: dict[str, dict[str, Any]] = {
    "prompts": {"prompt": ["a"] * 1024, "n": 4},
    "choices": {"prompt": ["a", "b", "c", "d"], "n": 1024},
    "texts": {"prompt": [f"text {i}" for i in range(1024)], "n": 4, "stream": True},
    "stop strings": {"prompt": ["a"] * 1024, "n": 4, "stop": large_stops()},
}


async def ask_and_leave(
    site: Site, engine: _Patient, body: dict[str, Any], *, at_once: bool
) -> None:
    """Send a request and hang up, at once or when the engine has heard of it."""
    host, port = site.url.removeprefix("http://").split(":")
    known = len(engine.waiting)
    _, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps({"max_tokens": 100, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
    await writer.drain()
    if not at_once:
        await eventually(lambda: len(engine.waiting) > known, 30)
    writer.close()
    await writer.wait_closed()


async def one_token(site: Site) -> float:
    """Seconds that a stranger's request takes, of this process: it does not wait for others."""
    began = time.process_time()
    await site.complete(prompt="a", max_tokens=1)
    return time.process_time() - began


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", ATTACKS)
async def test_4096_choices_and_a_client_that_hangs_up(name: str, at_once: bool) -> None:
    """The best of some attempts: what else a busy machine does is not ours."""
    engine = _Patient()
    async with on_a_port(engine) as site:
        alone = min([await one_token(site) for _ in range(10)])
        longest = []
        for _ in range(3):
            attack = asyncio.create_task(
                ask_and_leave(site, engine, ATTACKS[name], at_once=at_once)
            )
            waits = [await one_token(site)]
            while not attack.done() or site.context.admission.num_in_flight:
                waits.append(await one_token(site))
            longest.append(max(waits))
            await attack
        assert min(longest) - alone < LONGER_S * slowness()
        assert site.context.admission.num_in_flight == 0
        aborted = sorted(handle for handle, _ in engine.aborted)
        assert aborted == sorted(engine.waiting), "one abort a request, in any order"


SAID = b'"max_tokens":1,"messages":[{"role":"user","content":"a"}]'
LARGE = {
    "variables": (
        400,
        b'{%b,"chat_template_kwargs":{%b}}'
        % (SAID, b",".join(b'"k%d":1' % i for i in range(400_000))),
    ),
    "one variable": (200, b'{%b,"chat_template_kwargs":{"x":"%b"}}' % (SAID, b"word " * 800_000)),
    "messages": (
        400,
        b'{"max_tokens":1,"messages":[%b]}'
        % b",".join([b'{"role":"user","content":"%b"}' % (b"word " * 100)] * 8000),
    ),
}


@pytest.mark.parametrize("name", LARGE)
async def test_four_large_bodies_at_once(name: str) -> None:
    """`tests/serving/test_large_bodies.py` has all kinds, and larger ones."""
    status, raw = LARGE[name]
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    headers = {"content-type": "application/json"}
    async with on_a_port(chat_template=template) as site:

        async def post() -> int:
            reply = await site.client.post("/v1/chat/completions", content=raw, headers=headers)
            return reply.status_code

        await asyncio.gather(post(), post())  # starts the processes
        alone = min([await one_token(site) for _ in range(10)])
        longest = []
        for _ in range(3):
            attack = asyncio.gather(*[post() for _ in range(4)])
            waits = [await one_token(site)]
            while not attack.done():
                waits.append(await one_token(site))
            longest.append(max(waits))
            assert await attack == [status] * 4
        assert min(longest) - alone < LONGER_S * slowness()
