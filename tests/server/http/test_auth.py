"""API keys: which paths need one, and which keys are taken."""

from __future__ import annotations

import pytest

from tests.server.conftest import error_of, in_process, on_a_port

PROTECTED = [
    "/v1/models",
    "/version",
    "/metrics",
    "/tokenizer_info",
    "/x",
    "/docsx",
]


class TestApiKey:
    @pytest.mark.parametrize("path", PROTECTED)
    async def test_every_route_but_health_needs_one(self, path: str) -> None:
        async with in_process(api_keys=("one", "two")) as site:
            reply = await site.client.get(path)
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"] == "Bearer"
            error = error_of(reply)
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            for key in ("one", "two"):
                headers = {"authorization": f"Bearer {key}"}
                assert (await site.client.get(path, headers=headers)).status_code != 401

    @pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize"])
    async def test_posts_too(self, path: str) -> None:
        async with in_process(api_keys=("one",)) as site:
            assert (await site.client.post(path, json={})).status_code == 401

    @pytest.mark.parametrize("path", ["/docs", "/docs/page.js", "/openapi.json"])
    async def test_the_docs_are_open(self, path: str) -> None:
        async with in_process(api_keys=("one",)) as site:
            assert (await site.client.get(path)).status_code == 200

    @pytest.mark.parametrize("path", ["/health", "/ready"])
    async def test_health_is_open(self, path: str) -> None:
        async with in_process(api_keys=("one",)) as site:
            assert (await site.client.get(path)).status_code == 200

    async def test_metrics_can_be_open(self) -> None:
        async with in_process(api_keys=("one",), open_metrics=True) as site:
            assert (await site.client.get("/metrics")).status_code == 200

    @pytest.mark.parametrize("given", ["one", "Basic one", "Bearer ", "Bearer o", "Bearer oné"])
    async def test_wrong_keys(self, given: str) -> None:
        async with in_process(api_keys=("one",)) as site:
            headers = {b"authorization": given.encode()}
            assert (await site.client.get("/version", headers=headers)).status_code == 401

    @pytest.mark.parametrize(
        ("given", "status"),
        [("one", 200), ("two", 200), ("o", 401), ("", 401), ("Bearer one", 401)],
    )
    async def test_the_key_as_anthropic_s_clients_send_it(self, given: str, status: int) -> None:
        async with in_process(api_keys=("one", "two")) as site:
            for others in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}):
                reply = await site.client.get("/version", headers={"x-api-key": given, **others})
                assert reply.status_code == status


async def test_pings_need_no_key() -> None:
    async with on_a_port(api_keys=("k",)) as site:
        assert (await site.client.get("/ping")).status_code == 200
        assert (await site.client.get("/load")).status_code == 401
        assert (await site.client.get("/models")).status_code == 401
