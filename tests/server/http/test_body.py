"""Bodies: bounded, JSON only, and never long on the event loop."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError
from server.http.body import INLINE_BYTES, INLINE_OBJECTS
from server.http.body_memory import BodyMemory, Lease, parsed_bytes
from server.http.content import FORM, decompress
from server.http.large_bodies import _num_separators, decode_large
from tests.fakes import FakeEngine
from tests.server.conftest import Site, error_of, eventually, in_process, on_a_port
from tests.server.slowness import slowness
from tests.server.waits import LIMIT_S, longest_wait

JSON = {"content-type": "application/json"}


async def test_over_the_limit_is_413() -> None:
    async with on_a_port(max_body_bytes=5000) as site:
        reply = await site.client.post("/v1/completions", content=b"x" * 5001, headers=JSON)
        assert reply.status_code == 413
        error = error_of(reply)
        assert "at most 5000 bytes (--max-body-bytes), got 5001" in error["message"]

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1000

        reply = await site.client.post("/v1/completions", content=chunks(), headers=JSON)
        assert reply.status_code == 413
        assert (await site.complete(prompt="a"))["choices"]


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_of_just_the_limit_is_read(is_chunked: bool) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'.ljust(5000)

    async def chunks() -> AsyncIterator[bytes]:
        yield body[:2000]
        yield body[2000:]

    async with in_process(max_body_bytes=len(body)) as site:
        content = chunks() if is_chunked else body
        reply = await site.client.post("/v1/completions", content=content, headers=JSON)
        assert reply.status_code == 200
        reply = await site.client.post("/v1/completions", content=body + b" ", headers=JSON)
        assert reply.status_code == 413


async def test_far_over_the_limit_is_413_before_it_comes() -> None:
    async with on_a_port() as site, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.split(":")[-1]))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        writer.write(head + b"\r\nContent-Length: 99999999999\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data"},
        {"content-type": FORM, "origin": "http://test"},
        {"origin": "http://test"},
    ],
)
async def test_other_content_is_415(site: Site, headers: dict[str, str]) -> None:
    """A page of this very origin; a form of another one would not come so far."""
    reply = await site.client.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert reply.status_code == 415
    assert headers.get("content-type", "none") in error_of(reply)["message"]


@pytest.mark.parametrize("headers", [{}, {"content-type": FORM}])
async def test_what_curl_sends_by_itself_is_read(site: Site, headers: dict[str, str]) -> None:
    reply = await site.client.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.x+json"])
async def test_json_by_another_name(site: Site, kind: str) -> None:
    reply = await site.client.post(
        "/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": kind}
    )
    assert reply.status_code == 200


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


class TestCompressed:
    BODY = b'{"prompt": "abc", "max_tokens": 3}'

    async def post(self, site: Site, encoding: str, body: bytes) -> httpx.Response:
        headers = {**JSON, "content-encoding": encoding}
        return await site.client.post("/v1/completions", content=body, headers=headers)

    @pytest.mark.parametrize(
        ("encoding", "body"),
        [
            ("gzip", gzip.compress(BODY, mtime=0)),
            ("GZip", gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0)),
            ("deflate", zlib.compress(BODY)),
            ("deflate", raw_deflate(BODY)),
            ("identity", BODY),
        ],
    )
    async def test_is_read(self, site: Site, encoding: str, body: bytes) -> None:
        reply = await self.post(site, encoding, body)
        assert reply.status_code == 200
        assert reply.json()["choices"][0]["text"] == "abc"

    @pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
    async def test_what_is_not_read_is_415(self, site: Site, encoding: str) -> None:
        reply = await self.post(site, encoding, self.BODY)
        assert reply.status_code == 415
        assert reply.headers["accept-encoding"] == "gzip, deflate"
        assert encoding in error_of(reply)["message"]

    @pytest.mark.parametrize(
        ("encoding", "body", "words"),
        [
            ("gzip", BODY, "not valid gzip"),
            ("gzip", b"", "ends too early"),
            ("gzip", gzip.compress(BODY, mtime=0)[:-9], "ends too early"),
            ("gzip", gzip.compress(BODY, mtime=0) + b"more", "not valid gzip"),
            ("deflate", BODY, "not valid deflate"),
        ],
    )
    async def test_broken(self, site: Site, encoding: str, body: bytes, words: str) -> None:
        reply = await self.post(site, encoding, body)
        assert reply.status_code == 400
        assert words in error_of(reply)["message"]

    @pytest.mark.parametrize("num_members", [1, 2, 7, 300])
    def test_members_count_together(self, num_members: int) -> None:
        """Each is within the limit, and all are not: a bomb may be cut into any number."""
        members = gzip.compress(bytes(1000)) * num_members
        whole = decompress(members, "gzip", 1000 * num_members)
        assert whole is not None
        assert bytes(whole) == bytes(1000 * num_members)
        assert decompress(members, "gzip", 1000 * num_members - 1) is None

    async def test_a_bomb_is_413(self) -> None:
        """128 MiB in 128 KiB; what is unpacked of it is the limit, a MiB more, and its copy."""
        packer = zlib.compressobj(wbits=31)
        bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(128)) + packer.flush()
        tracemalloc.start()
        try:
            assert decompress(bomb, "gzip", 5 << 20) is None
            assert tracemalloc.get_traced_memory()[1] < 14 << 20
        finally:
            tracemalloc.stop()
        async with in_process(max_body_bytes=5 << 20) as site:
            reply = await self.post(site, "gzip", bomb)
            assert reply.status_code == 413
            assert "more once decompressed" in error_of(reply)["message"]


def many_keys(before: bytes, after: bytes) -> bytes:
    keys = b",".join(b'"k%d":0' % i for i in range(2_000_000))
    return b'{"prompt":"a",%b%b%b}' % (before, keys, after)


class TestLargeAndWrong:
    """Bodies whose errors alone would fill the memory: each is refused within a second or two."""

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (many_keys(b"", b""), "unknown field 'k0'"),
            (b'{"prompt":"a","stop":[' + b"1," * 10_000_000 + b"1]}", "at most 4194304 numbers"),
            (b'{"prompt":' + b"[" * 10_000_000, "not valid JSON"),
            (b'{"prompt":"a","pr`ompt":1}' + b" " * INLINE_BYTES, "unknown field 'pr`ompt'"),
        ],
        ids=["unknown fields", "stop", "depth", "a field with a tick"],
    )
    def test_is_refused_early(self, body: bytes, words: str) -> None:
        began = time.process_time()
        with pytest.raises(ApiError, match=words):
            decode_large(CompletionRequest, body)
        # 0.1 s of one core, 1 s for the list; errors for all took 14 s and 300 s.
        assert time.process_time() - began < 5 * slowness()

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b'{"stop":{%b}}', "stop must hold at most 131072 values, got some 200"),
            (b'{"prompt":[%b]}', "prompt must hold at most 131072 values, got some 400"),
        ],
    )
    def test_too_many_values_are_refused_before_they_are_built(
        self, body: bytes, words: str
    ) -> None:
        inner = b",".join(b'"k%d,[{":0' % i for i in range(200_000))
        if b"[%b" in body:
            inner = inner.replace(b":", b",")
        tracemalloc.start()
        try:
            raw = body % inner
            with pytest.raises(ApiError, match=words) as refused:
                decode_large(CompletionRequest, raw)
            assert tracemalloc.get_traced_memory()[1] < 6 * len(raw)
        finally:
            tracemalloc.stop()
        assert (refused.value.status, refused.value.code) == (400, "too_large")

    @pytest.mark.parametrize(
        ("raw", "count"),
        [
            (b'{"a":[1,2,{"b":"c"}]}', 5),
            (rb'["a,\",[{", "\\", "{\\\"[", 1]', 4),
            (b'"[[[,,,{{{"', 0),
            ('["é,", "\\u0022,"]'.encode(), 2),
        ],
    )
    def test_values_are_counted_outside_of_strings(self, raw: bytes, count: int) -> None:
        orjson.loads(raw)
        assert _num_separators(raw) == count

    def test_what_is_ignored_is_not_built(self) -> None:
        raw = b'{"prompt":"a","metadata":[' + b"[]," * 200_000 + b"[]]}"
        body, _ = decode_large(CompletionRequest, raw)
        assert (body.prompt, body.metadata) == (["a"], None)
        with pytest.raises(ApiError, match="not valid JSON"):
            decode_large(CompletionRequest, b'{"prompt":"a","metadata":[}')


async def test_thirty_megabytes_do_not_hold_up_the_event_loop() -> None:
    """Answered with the field and the numbers, while a heartbeat goes on."""
    text = orjson.dumps({"prompt": "word " * 5_500_000})
    ids = orjson.dumps({"prompt": [12] * 9_000_000})
    broken = b'{"prompt": [' + b"1," * 14_000_000
    async with on_a_port() as site:
        await site.client.post(
            "/v1/completions", content=b" " * INLINE_BYTES + b"{}", headers=JSON
        )  # starts the other process
        for body, param, words in (
            (text, "prompt", "at least"),
            (ids, "prompt", "at most 4194304 numbers, got 9000000"),
            (broken, None, "not valid JSON"),
        ):
            reply = httpx.Response(0)

            async def post(body: bytes = body) -> None:
                nonlocal reply
                reply = await site.client.post("/v1/completions", content=body, headers=JSON)

            assert await longest_wait(post) < LIMIT_S * slowness()
            assert reply.status_code == 400
            error = error_of(reply)
            assert error["param"] == param
            assert words in error["message"]


async def test_a_big_body_is_refused_as_a_small_one_is() -> None:
    """The refusal comes back from the other process with its field and its code."""
    raw = b'{"prompt":"a","n":-1}'
    async with in_process() as site:
        small, big = [
            error_of(await site.client.post("/v1/completions", content=content, headers=JSON))
            for content in (raw, raw + b" " * INLINE_BYTES)
        ]
    assert small["code"] == "invalid_field"
    assert big == small


async def test_a_compressed_body_has_memory_for_its_bytes_and_for_what_they_become(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes that come cannot be compressed again, so they seem to unpack to the limit."""
    leased: list[int] = []
    lease = BodyMemory.lease

    async def noting(memory: BodyMemory, num_bytes: int) -> Lease:
        leased.append(num_bytes)
        return await lease(memory, num_bytes)

    monkeypatch.setattr(BodyMemory, "lease", noting)
    text = np.random.default_rng(0).bytes(INLINE_BYTES).hex()
    plain = orjson.dumps({"prompt": "a", "metadata": {"a": text}})
    packed = gzip.compress(plain, mtime=0)
    assert INLINE_BYTES < len(packed) < 2 * INLINE_BYTES
    async with in_process(max_body_bytes=4 << 20) as site:
        headers = {**JSON, "content-encoding": "gzip"}
        reply = await site.client.post("/v1/completions", content=packed, headers=headers)
        assert reply.status_code == 200, reply.text
    assert leased == [len(packed) + (4 << 20), parsed_bytes(plain)]


async def test_what_large_bodies_were_parsed_into_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of twelve conversations that come at once, three are there as objects at any time.

    Their bytes would all have been let in.
    """
    message = b'{"role":"user","content":"a"}'
    raw = b'{"max_tokens":1,"messages":[%b]}' % b",".join([message] * (INLINE_OBJECTS + 1))
    monkeypatch.setattr("server.http.body.PARSED_BYTES", 3 * parsed_bytes(raw))
    alive, most = 0, 0
    async with in_process(chat_template="a") as site:
        read, encode = site.context.bodies.read, site.context.template.encode

        async def reading(*args: Any) -> Any:
            nonlocal alive, most
            body = await read(*args)
            alive += 1
            most = max(alive, most)
            return body

        async def encoding(*args: Any, **more: Any) -> Any:
            nonlocal alive
            await eventually(lambda: most >= 3)
            await asyncio.sleep(0.05)  # in which others would be parsed
            try:
                return await encode(*args, **more)
            finally:
                alive -= 1

        monkeypatch.setattr(site.context.bodies, "read", reading)
        monkeypatch.setattr(site.context.template, "encode", encoding)
        post = partial(site.client.post, "/v1/chat/completions", content=raw, headers=JSON)
        replies = await asyncio.gather(*[post() for _ in range(12)])
    assert {reply.status_code for reply in replies} == {200}, replies[0].text
    assert most == 3


async def test_a_big_body_that_is_fine_is_served() -> None:
    """Ids and texts come back from the other process as they were."""
    engine = FakeEngine(max_model_len=400_000)
    async with in_process(engine) as site:
        ids = [i % 250 for i in range(300_000)]
        assert len(orjson.dumps(ids)) > INLINE_BYTES
        await site.complete(prompt=ids, max_tokens=1, stop=["zz"], logit_bias={"5": 1.5})
        request = engine.requests[-1]
        assert (request.prompt_token_ids == np.array(ids)).all()
        assert request.params.logit_bias == {5: 1.5}
        await site.complete(prompt="é" * 150_000, max_tokens=1)
        assert engine.requests[-1].prompt_token_ids.tolist() == list("é".encode()) * 150_000
        error = await site.refused(prompt=ids, temperature=-1)
        assert error["param"] == "temperature"


async def test_long_texts_are_tokenised_off_the_event_loop() -> None:
    async with on_a_port(FakeEngine(max_model_len=100_000)) as site:
        post = partial(site.client.post, "/tokenize", json={"prompt": "word " * 30_000})
        assert await longest_wait(post) < LIMIT_S * slowness()
        tokens = (await post()).json()["tokens"]
        assert len(tokens) == 150_000
        post = partial(site.client.post, "/detokenize", json={"tokens": tokens})
        assert await longest_wait(post) < LIMIT_S * slowness()
        assert (await post()).json()["prompt"] == "word " * 30_000


@pytest.mark.parametrize("more", [b"", b" " * INLINE_BYTES], ids=["small", "large"])
async def test_fields_without_effect_are_named(more: bytes) -> None:
    raw = b'{"prompt":"a","max_tokens":1,"cache_prompt":[{}],"wish":[1]%b}'
    for accepts, status, names in ((True, 200, "cache_prompt, wish"), (False, 400, None)):
        async with in_process(accepts_unknown_fields=accepts) as site:
            reply = await site.client.post("/v1/completions", content=raw % more, headers=JSON)
            assert reply.status_code == status
            assert reply.headers.get("x-ignored-fields") == names
            if status == 400:
                assert "unknown field 'wish'" in error_of(reply)["message"]
                known = (raw % more).replace(b',"wish":[1]', b"")
                reply = await site.client.post("/v1/completions", content=known, headers=JSON)
                assert reply.headers["x-ignored-fields"] == "cache_prompt"
