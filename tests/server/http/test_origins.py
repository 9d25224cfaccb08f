"""Pages of other sites may not drive the server; clients that are no browser notice nothing."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from server.http.origins import LOCAL_HOSTS, host_name
from tests.server.conftest import Site, error_of, in_process, on_a_port


async def post(site: Site, headers: dict[str, str]) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    body = b'{"prompt": "a", "max_tokens": 1}'
    return await site.client.post("/v1/completions", content=body, headers=headers)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:9", "LocalHost"]
)
async def test_own_hosts(host: str) -> None:
    async with in_process(allowed_hosts=LOCAL_HOSTS) as site:
        assert (await post(site, {"host": host})).status_code == 200
        own_page = {"host": host, "origin": f"http://{host}"}
        assert (await post(site, own_page)).status_code == 200


@pytest.mark.parametrize(
    "host", ["rebound.example", "localhost.example:8000", "127.0.0.1.example", ""]
)
async def test_a_name_that_points_here_is_refused(host: str) -> None:
    """A page may let its own name point to 127.0.0.1 and is then of the same origin as we."""
    async with in_process(allowed_hosts=LOCAL_HOSTS) as site:
        reply = await post(site, {"host": host, "origin": f"http://{host}"})
        assert reply.status_code == 403
        assert error_of(reply)["code"] == "host_not_allowed"
        assert "--allowed-hosts" in error_of(reply)["message"]
        assert not site.engine.requests


@pytest.mark.parametrize("allowed", [(), LOCAL_HOSTS])
async def test_a_request_names_one_host(allowed: tuple[str, ...]) -> None:
    async with in_process(allowed_hosts=allowed) as site:
        hosts = [("host", "localhost"), ("host", "rebound.example")]
        reply = await site.client.get("/v1/models", headers=hosts)
        assert reply.status_code == 400
        assert error_of(reply)["code"] == "several_hosts"


@pytest.mark.parametrize("allowed", [(), ("*",), ("api.example",)])
async def test_hosts_may_be_any(allowed: tuple[str, ...]) -> None:
    async with in_process(allowed_hosts=allowed) as site:
        assert (await post(site, {"host": "api.example"})).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:3000", "file://"]
)
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_foreign_pages_are_refused(origin: str, kind: str) -> None:
    async with in_process(allowed_origins=("https://good.example",)) as site:
        headers = {"host": "localhost:8000", "origin": origin, "content-type": kind}
        reply = await post(site, headers)
        assert reply.status_code == 403
        assert error_of(reply)["code"] == "origin_not_allowed"
        assert error_of(reply)["type"] == "permission_error"
        assert not site.engine.requests


@pytest.mark.parametrize("allowed", ["*", "https://good.example"])
async def test_pages_that_may(allowed: str) -> None:
    async with in_process(allowed_origins=(allowed,)) as site:
        reply = await post(site, {"origin": "https://good.example"})
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == allowed


async def test_the_openai_client_notices_nothing() -> None:
    async with (
        on_a_port(allowed_hosts=LOCAL_HOSTS) as site,
        openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="x") as client,
    ):
        reply = await client.completions.create(model="fake", prompt="ab", max_tokens=2)
        assert reply.choices[0].text == "ab"


@pytest.mark.parametrize(
    ("host", "name"),
    [("A:80", "a"), ("a", "a"), ("[::1]:8", "[::1]"), ("[::1]", "[::1]"), ("a:b", "a:b")],
)
def test_host_name(host: str, name: str) -> None:
    assert host_name(host) == name


def test_no_header_is_no_browser() -> None:
    from server.http.origins import Origins

    scope: dict[str, Any] = {"headers": []}
    Origins(LOCAL_HOSTS, ()).check(scope)
