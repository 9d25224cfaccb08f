"""One line a request: who, what, how it ended, and nothing that a client could forge."""

from __future__ import annotations

import logging

import pytest

from engine.logs import FIELDS, TextFormatter
from tests.server.conftest import Site, in_process


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.name == "tailrace.access"]
    return [TextFormatter().format(record) for record in records]


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrace.access")


async def test_a_completion(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for stream in (False, True):
        body = {"prompt": "abc", "max_tokens": 5, "stream": stream}
        headers = {"x-request-id": "mine"}
        reply = await site.client.post("/v1/completions", json=body, headers=headers)
        assert reply.status_code == 200
    for line, record in zip(lines(caplog), caplog.records, strict=True):
        assert " INFO access: 127.0.0.1:123 POST /v1/completions 200 in " in line
        assert line.endswith(", id mine, 3 + 5 tokens")
        fields = getattr(record, FIELDS)
        assert fields["request_id"] == "mine"
        assert (fields["prompt_tokens"], fields["completion_tokens"]) == (3, 5)
        assert 0 <= fields["seconds"] < 5


async def test_a_refusal_tells_its_reason(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    await site.client.post("/v1/completions", json={"prompt": "a", "top_p": 7})
    await site.client.get("/nope%1b[2J%0aINFO access: forged")
    first, second = lines(caplog)
    assert "POST /v1/completions 400 in" in first
    assert "top_p must be at most 1, got 7" in first
    assert "GET /nope\\x1b[2J\\nINFO access: forged 404 in" in second
    assert "\n" not in second


async def test_a_request_without_an_id_gets_the_one_of_its_reply(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await site.complete(prompt="a", max_tokens=1)
    [line] = lines(caplog)
    assert f"id {reply['id'].removeprefix('cmpl-')}," in line


async def test_lines_can_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with in_process(access_log_hidden=("/health",)) as site:
        await site.client.get("/health")
        await site.client.get("/version")
    assert ["/version" in line for line in lines(caplog)] == [True]
    caplog.clear()
    async with in_process(access_log=False) as site:
        await site.client.get("/version")
    assert lines(caplog) == []
