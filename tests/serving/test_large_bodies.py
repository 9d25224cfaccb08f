"""Large bodies of every kind of field, many at once: what another client waits for.

What is counted of a wait is what the front and the engine computed in it: other processes of the
machine are left out, and so are those that parse and render, which yield to both.
`tests/server/endpoints/test_attacks.py` has a light version, over an engine that does not compute.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest

from tests.serving.process import Server, serve
from tests.serving.watch import Watch

pytestmark = pytest.mark.slow

LONGER_S = 0.3
"""A stranger's chat waits at most so much longer, in 99 of 100 cases; no stream's gap is longer."""
MORE_BYTES = 100 << 20
SIZES = {"25 MB, 20 at once": (25 << 20, 20), "4 MB, 100 at once": (4 << 20, 100)}
CHAT, DECISIONS = "/v1/chat/completions", "/v1/decisions"
ASKED = b'{"type":"predicate","instructions":"Is it?"}'
SAID = b'"max_tokens":1,"messages":[{"role":"user","content":"a"}]'


def repeated(item: Callable[[int], bytes], size: int) -> bytes:
    """Items with commas between them, about `size` bytes."""
    num_bytes = len(item(100_000)) + 1
    return b",".join(item(i) for i in range(size // num_bytes))


def keys(size: int) -> bytes:
    return b"{%b}" % repeated(lambda i: b'"k%d":1' % i, size)


def chat(field: bytes) -> Callable[[int], bytes]:
    """A chat with a field of so many keys."""
    return lambda size: b'{%b,"%b":%b}' % (SAID, field, keys(size))


def prompt(raw: Callable[[int], bytes], more: bytes = b"") -> Callable[[int], bytes]:
    return lambda size: b'{"max_tokens":1,%b"prompt":%b}' % (more, raw(size))


def ids(size: int) -> bytes:
    return b"[%b]" % repeated(lambda i: b"%d" % (i % 1000 + 1000), size)


def words(size: int) -> bytes:
    return b'"%b"' % (b"word, and " * (size // 10))


BODIES: dict[str, tuple[str, Callable[[int], bytes], set[int]]] = {
    "template variables": (CHAT, chat(b"chat_template_kwargs"), {400}),
    "one long variable": (
        CHAT,
        lambda size: b'{%b,"chat_template_kwargs":{"x":%b}}' % (SAID, words(size)),
        {200},
    ),
    "metadata": (CHAT, chat(b"metadata"), {200}),
    "biases": (CHAT, chat(b"logit_bias"), {400}),
    "documents": (CHAT, lambda size: b'{%b,"documents":[%b]}' % (SAID, keys(size)), {400}),
    "tools": (
        CHAT,
        lambda size: (
            b'{%b,"tools":[{"type":"function","function":{"name":"f","parameters":%b}}]}'
            % (SAID, keys(size))
        ),
        {400},
    ),
    "a schema": (
        CHAT,
        lambda size: (
            b'{%b,"response_format":{"type":"json_schema","json_schema":{"name":"n",'
            b'"schema":{"properties":%b}}}}' % (SAID, keys(size))
        ),
        {400},
    ),
    "arguments": (
        CHAT,
        lambda size: (
            b'{"max_tokens":1,"messages":[{"role":"assistant","tool_calls":[{"function":'
            b'{"name":"f","arguments":%b}}]}]}' % keys(size)
        ),
        {400},
    ),
    "parts": (
        CHAT,
        lambda size: (
            b'{"max_tokens":1,"messages":[{"role":"user","content":[%b]}]}'
            % repeated(lambda i: b'{"type":"text","text":"a"}', size)
        ),
        {400},
    ),
    "messages": (
        CHAT,
        lambda size: (
            b'{"max_tokens":1,"messages":[%b]}'
            % b",".join([b'{"role":"user","content":%b}' % words(size // 8000)] * 8000)
        ),
        {400},
    ),
    "unknown fields": (CHAT, lambda size: b"{%b,%b" % (SAID, keys(size)[1:]), {400}),
    "a text": ("/v1/completions", prompt(words), {400}),
    "a text that is cut": ("/v1/completions", prompt(words, b'"truncate_prompt_tokens":9,'), {200}),
    "texts": (
        "/v1/completions",
        prompt(lambda size: b"[%b]" % repeated(lambda i: b'"a"', size)),
        {400},
    ),
    "ids": ("/v1/completions", prompt(ids), {400}),
    "lists of ids": (
        "/v1/completions",
        prompt(lambda size: b"[%b]" % repeated(lambda i: b"[5]", size)),
        {400},
    ),
    "stop strings": (
        "/v1/completions",
        prompt(lambda size: b'"a","stop":[%b]' % repeated(lambda i: b'"%d"' % i, size)),
        {400},
    ),
    "text to tokenize": ("/tokenize", lambda size: b'{"prompt":%b}' % words(size), {200, 400}),
    "ids to detokenize": ("/detokenize", lambda size: b'{"tokens":%b}' % ids(size), {200, 400}),
    "items": (
        "/generative_scoring",
        lambda size: (
            b'{"query":"a","label_token_ids":[5],"items":[%b]}'
            % repeated(lambda i: b'"%d"' % i, size)
        ),
        {400},
    ),
    "Responses": (
        "/v1/responses",
        lambda size: (
            b'{"max_output_tokens":1,"input":[%b]}'
            % repeated(lambda i: b'{"role":"user","content":"a"}', size)
        ),
        {400},
    ),
    "Messages": (
        "/v1/messages",
        lambda size: (
            b'{"model":"tailrace-demo","max_tokens":1,"messages":[{"role":"user","content":[%b]}]}'
            % repeated(lambda i: b'{"type":"text","text":"a"}', size)
        ),
        {400},
    ),
    "a state": (
        DECISIONS,
        lambda size: (
            b'{"model":"tailrace-demo","input":%b,"questions":[%b]}' % (words(size), ASKED)
        ),
        {400},
    ),
    "questions": (
        DECISIONS,
        lambda size: (
            b'{"model":"tailrace-demo","input":"a","questions":[%b]}'
            % repeated(lambda i: ASKED, size)
        ),
        {400},
    ),
    "JSON to decide on": (
        DECISIONS,
        lambda size: (
            b'{"model":"tailrace-demo","input":[{"role":"user","content":[{"type":"input_json",'
            b'"data":%b}]}],"questions":[%b]}' % (keys(size), ASKED)
        ),
        {400},
    ),
    "a state of SystemOne": (
        "/v1/systemone",
        lambda size: (
            b'{"model":"tailrace-demo","state":%b,"questions":{"q":{"type":"noul",'
            b'"instructions":"a"}}}' % keys(size)
        ),
        {422},
    ),
    "options of SystemOne": (
        "/v1/systemone",
        lambda size: (
            b'{"model":"tailrace-demo","state":"a","questions":{"q":{"type":"choice",'
            b'"criteria":%b}}}' % keys(size)
        ),
        {422},
    ),
    "documents to rank": (
        "/v1/rerank",
        lambda size: b'{"query":"a","documents":[%b]}' % repeated(lambda i: b'"%d"' % i, size),
        {400},
    ),
    "a long document to rank": (
        "/v1/rerank",
        lambda size: b'{"query":"a","documents":[%b]}' % words(size),
        {400},
    ),
    "texts to embed": (
        "/v1/embeddings",
        lambda size: b'{"input":[%b]}' % repeated(lambda i: b'"%d"' % i, size),
        {400},
    ),
    "a text to embed": ("/v1/embeddings", lambda size: b'{"input":%b}' % words(size), {400}),
    "pairs": (
        "/v1/score",
        lambda size: b'{"text_1":"a","text_2":[%b]}' % repeated(lambda i: b'"%d"' % i, size),
        {400},
    ),
    "a chat to render": (
        "/v1/chat/completions/render",
        lambda size: b'{"messages":[{"role":"user","content":%b}]}' % words(size),
        {400},
    ),
    "SGLang's ids": ("/generate", lambda size: b'{"input_ids":%b}' % ids(size), {400}),
    "vLLM's ids": (
        "/inference/v1/generate",
        lambda size: b'{"token_ids":%b,"sampling_params":{"max_tokens":1}}' % ids(size),
        {400},
    ),
    "an invocation": ("/invocations", prompt(words), {400}),
}
"""Path, body of about so many bytes, and the statuses it may have."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With one thread, so that what it computes is what one waits for."""
    with serve("--num-threads", "1") as running:
        yield running


class Stranger:
    """A client that chats and reads a stream, and notes what it waits for."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._url, self._session = server.url, session
        self._watch = Watch(server)
        self.waits: list[float] = []
        self.gaps: list[float] = []

    async def chat(self) -> None:
        while True:
            began = self._watch.now()
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
            async with self._session.post(self._url + CHAT, json=body) as reply:
                assert reply.status == 200, await reply.text()
                await reply.read()
            self.waits.append(self._watch.since(began))
            await asyncio.sleep(0.01)

    async def stream(self) -> None:
        body: dict[str, Any] = {
            "prompt": "a",
            "max_tokens": 500,
            "stream": True,
            "ignore_eos": True,
        }
        while True:
            began = self._watch.now()
            async with self._session.post(f"{self._url}/v1/completions", json=body) as reply:
                async for _ in reply.content:
                    self.gaps.append(self._watch.since(began))
                    began = self._watch.now()

    async def beside(self, work: Any) -> Any:
        """What `work` gives, while this client is served."""
        self.waits, self.gaps = [], []
        tasks = [asyncio.create_task(self.chat()), asyncio.create_task(self.stream())]
        try:
            return await work
        finally:
            for task in tasks:
                task.cancel()
            failures = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in failures), failures


async def send(server: Server, session: aiohttp.ClientSession, path: str, raw: bytes) -> int:
    headers = {"content-type": "application/json"}
    async with session.post(server.url + path, data=io.BytesIO(raw), headers=headers) as reply:
        await reply.read()
        return reply.status


async def resident_after(server: Server, most: int) -> int:
    """Bytes that the front keeps, once it has had time to give back."""
    front = psutil.Process(server.process.pid)
    for _ in range(100):
        if front.memory_info().rss <= most:
            break
        await asyncio.sleep(0.2)
    return int(front.memory_info().rss)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", BODIES)
async def test_nobody_waits_for_large_bodies(server: Server, name: str, sizes: str) -> None:
    path, make, statuses = BODIES[name]
    size, count = SIZES[sizes]
    raw = make(size)
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await send(server, session, path, make(1 << 20))  # starts what processes there are to start
        stranger = Stranger(server, session)
        await stranger.beside(asyncio.sleep(3.0))
        alone = float(np.percentile(stranger.waits, 99))
        before = psutil.Process(server.process.pid).memory_info().rss
        attack = asyncio.gather(*[send(server, session, path, raw) for _ in range(count)])
        began = time.perf_counter()
        found = await stranger.beside(attack)
        took = time.perf_counter() - began
        waited, gap = float(np.percentile(stranger.waits, 99)), max(stranger.gaps)
        after = await resident_after(server, before + MORE_BYTES)
    print(
        f"\n{name}, {sizes}: {took:.1f} s, alone {alone:.3f}, beside {waited:.3f}, gap {gap:.3f},"
        f" {(after - before) / 1e6:.0f} MB more, {sorted(set(found))}"
    )
    assert set(found) <= statuses
    assert waited - alone <= LONGER_S
    assert gap <= LONGER_S
    assert after - before <= MORE_BYTES
