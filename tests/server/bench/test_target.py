"""The address and the model: URLs as people write them, and one line for what is wrong."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from server.bench.target import find_model, parse_target
from tests.server.bench.fake_server import fake_server


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h", "http://h:80"),
        ("http://h:8000/", "http://h:8000"),
        ("https://h/v1", "https://h:443"),
        ("https://h/behind/v1/", "https://h:443/behind"),
        ("http://[::1]:5", "http://[::1]:5"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert parse_target(url, key=None).url == shown


@pytest.mark.parametrize("url", ["h:8000", "ftp://h", "http://", "http://h:x", "http://h:99999"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        parse_target(url, key=None)


def test_a_request_as_bytes() -> None:
    target = parse_target("http://h:1/p", key="k")
    assert target.post("/v1/completions", {"a": 1}) == (
        b"POST /p/v1/completions HTTP/1.1\r\nHost: h:1\r\nAccept: */*\r\n"
        b"Authorization: Bearer k\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n"
        b'{"a":1}'
    )


@pytest.mark.parametrize("key", ["a\r\nX: 1", "é"])
def test_a_key_that_cannot_be_sent(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        parse_target("http://h", key=key)


async def test_models() -> None:
    with fake_server(key="k") as fake:
        target = parse_target(fake.url, key="k")
        assert await find_model(target, None) == "fake"
        assert await find_model(target, "other") == "other"
        with pytest.raises(ConfigError, match="has no model 'x'; it has 'fake', 'other'"):
            await find_model(target, "x")
        with pytest.raises(ConfigError, match=r"refuses the key \(401: wrong key\); see --api-key"):
            await find_model(parse_target(fake.url, key=None), None)
    with pytest.raises(ConfigError, match="cannot be reached: Connection refused"):
        await find_model(target, None)
