"""Request ids, the drain, errors, and the one outcome of each request."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from server.errors import ApiError
from server.generation.generation import Generation
from server.http.admission import ShutdownError
from server.http.lifecycle import Lifecycle
from server.metrics import OUTCOMES
from tests.fakes import FakeEngine
from tests.server.conftest import Site, error_of, eventually, in_process, on_a_port


class TestRequestId:
    async def test_is_in_every_reply(self) -> None:
        async with in_process() as site:
            reply = await site.client.get("/version", headers={"x-request-id": "mine"})
            assert reply.headers["x-request-id"] == "mine"
            drawn = [(await site.client.get("/nope")).headers["x-request-id"] for _ in range(2)]
            assert drawn[0] != drawn[1]
            reply = await site.client.post("/v1/completions", json={"prompt": "a"})
            assert reply.json()["id"] == f"cmpl-{reply.headers['x-request-id']}"

    async def test_is_left_out_where_it_is_not_wanted(self) -> None:
        async with in_process(request_id_headers=False) as site:
            reply = await site.client.get("/version", headers={"x-request-id": "mine"})
            assert "x-request-id" not in reply.headers

    async def test_names_the_reply(self, site: Site) -> None:
        reply = await site.client.post(
            "/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "mine"}
        )
        assert reply.json()["id"] == "cmpl-mine"

    async def test_has_a_limit(self, site: Site) -> None:
        reply = await site.client.get("/version", headers={"x-request-id": "x" * 257})
        assert reply.status_code == 400
        assert "at most 256 characters, got 257" in error_of(reply)["message"]

    @pytest.mark.parametrize("given", [b"a\x1b[31mb", b"a\x9bb", b"a\tb", "é".encode()])
    async def test_cannot_forge_a_line(self, given: bytes) -> None:
        async with in_process(request_id_headers=True) as site:
            headers = {b"x-request-id": given}
            reply = await site.client.get("/version", headers=headers)
            assert reply.status_code == 400
            assert "printable ASCII" in error_of(reply)["message"]
            assert "x-request-id" not in reply.headers


class TestDraining:
    async def test_waits_for_the_last_request(self) -> None:
        lifecycle = Lifecycle()
        lifecycle.enter()
        lifecycle.enter()
        drained = asyncio.create_task(lifecycle.drain(10))
        lifecycle.leave()
        await asyncio.sleep(0.02)
        assert not drained.done()
        lifecycle.leave()
        assert await drained

    async def test_old_requests_end_and_new_ones_go_elsewhere(self) -> None:
        engine = FakeEngine(step_s=0.002)
        async with in_process(engine) as site:
            old = asyncio.create_task(site.complete(prompt="a", max_tokens=30))
            await eventually(lambda: bool(engine.requests))
            drained = asyncio.create_task(site.context.lifecycle.drain(10))
            await asyncio.sleep(0)
            reply = await site.client.post("/v1/completions", json={"prompt": "a"})
            assert reply.status_code == 503
            assert reply.headers["connection"] == "close"
            assert error_of(reply)["code"] == "shutting_down"
            assert (await site.client.get("/ready")).status_code == 503
            assert (await site.client.get("/health")).status_code == 200
            assert (await site.client.get("/metrics")).status_code == 200
            assert len((await old)["choices"][0]["text"]) == 30
            assert await drained

    async def test_patience_ends(self) -> None:
        async with in_process(FakeEngine(step_s=0.01)) as site:
            old = asyncio.create_task(
                site.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 250})
            )
            await eventually(lambda: bool(site.engine.requests))
            assert not await site.context.lifecycle.drain(0.02)
            site.context.admission.fail_all(ShutdownError())
            reply = await old
            assert reply.status_code == 503
            assert error_of(reply)["code"] == "shutting_down"


class TestErrors:
    async def test_unknown_routes_and_methods(self, site: Site) -> None:
        reply = await site.client.get("/nope")
        assert (reply.status_code, error_of(reply)["type"]) == (404, "not_found_error")
        reply = await site.client.get("/v1/completions")
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
        assert error_of(reply)["type"] == "invalid_request_error"
        reply = await site.client.post("/v1/completions/", json={})
        assert reply.status_code == 404

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            *((400, "invalid_request_error"), (401, "authentication_error")),
            *((403, "permission_error"), (404, "not_found_error"), (413, "request_too_large")),
            *((429, "rate_limit_error"), (500, "api_error"), (503, "overloaded_error")),
        ],
    )
    def test_errors_of_messages_have_anthropic_s_shape(self, status: int, kind: str) -> None:
        error = ApiError(status, "no", param="p", headers={"retry-after": "1"})
        wanted = {"type": "error", "error": {"type": kind, "message": "no"}}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            reply = error.response(path)
            assert json.loads(bytes(reply.body)) == wanted
            assert (reply.status_code, reply.headers["retry-after"]) == (status, "1")
        for path in ("/v1/messages2", "/v1/responses", "/"):
            assert json.loads(bytes(error.response(path).body)) == error.body()

    async def test_root_path(self) -> None:
        """A proxy takes the prefix off; links and the key still work."""
        async with on_a_port(root_path="/proxy", api_keys=("k",)) as site:
            assert (await site.client.get("/health")).status_code == 200
            assert (await site.client.get("/version")).status_code == 401
            await site.client.post("/v1/completions", json={})
            assert site.metric("tailrace_requests_received_total") == 1

    async def test_cors(self) -> None:
        headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
        async with in_process(allowed_origins=("https://a.example",), api_keys=("k",)) as site:
            reply = await site.client.options("/v1/completions", headers=headers)
            assert reply.headers["access-control-allow-origin"] == "https://a.example"
        async with in_process() as site:
            reply = await site.client.get("/health", headers=headers)
            assert "access-control-allow-origin" not in reply.headers


class TestAccounts:
    async def test_each_generation_request_has_one_outcome(self, site: Site) -> None:
        bodies = [{"prompt": "a"}, {"prompt": "a", "stream": True}, {}, {"prompt": 5}]
        for body in bodies:
            await site.client.post("/v1/completions", json=body)
        await site.client.post("/v1/completions", content=b"{")
        await site.client.get("/v1/completions")
        outcomes = {o: site.metric("tailrace_request_outcomes_total", outcome=o) for o in OUTCOMES}
        assert outcomes["success"] == 2
        assert outcomes["client_error"] == 3
        assert sum(outcomes.values()) == site.metric("tailrace_requests_received_total") == 5

    @pytest.mark.parametrize("path", ["decisions", "systemone", "rerank", "embeddings", "score"])
    async def test_requests_that_score_have_one_too(self, path: str, site: Site) -> None:
        assert (await site.client.post(f"/v1/{path}", json={})).status_code >= 400
        assert site.metric("tailrace_requests_received_total") == 1
        assert site.metric("tailrace_request_outcomes_total", outcome="client_error") == 1

    async def test_http_requests_by_route(self, site: Site) -> None:
        for path in ("/v1/models/fake", "/v1/models/fake", "/nope", "/other"):
            await site.client.get(path)
        await site.client.request("ODD", "/nope")
        name, ok = "http_requests_total", {"method": "GET", "status": "200"}
        assert site.metric(name, handler="/v1/models/{model:path}", **ok) == 2
        assert site.metric(name, handler="none", method="GET", status="404") == 2
        assert site.metric(name, handler="none", method="other", status="404") == 1

    async def test_a_request_that_is_cancelled_counts_once(self) -> None:
        async with in_process(FakeEngine(step_s=0.01)) as site:
            body = {"prompt": "a", "max_tokens": 200}
            task = asyncio.create_task(site.client.post("/v1/completions", json=body))
            await eventually(lambda: bool(site.engine.requests))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            outcomes = {
                o: site.metric("tailrace_request_outcomes_total", outcome=o) for o in OUTCOMES
            }
            assert outcomes == {**dict.fromkeys(OUTCOMES, 0), "abort": 1}
            assert site.metric("tailrace_requests_received_total") == 1
            assert await site.context.lifecycle.drain(1)

    async def test_head_works_where_get_does(self) -> None:
        async with on_a_port() as site:
            for path in ("/health", "/v1/models", "/version", "/metrics"):
                reply = await site.client.head(path)
                assert (reply.status_code, reply.content) == (200, b"")
                assert int(reply.headers["content-length"]) > 0
            assert (await site.client.head("/v1/completions")).status_code == 405
            assert (await site.client.get("/version")).status_code == 200  # on that connection

    async def test_a_client_that_never_sent_its_body(self, site: Site) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            pass

        await site.call("/v1/completions", receive, send)
        assert site.metric("tailrace_request_outcomes_total", outcome="abort") == 1


async def test_an_open_connection_keeps_nothing_of_the_request_that_it_had(site: Site) -> None:
    body = json.dumps({"prompt": "a" * 100, "max_tokens": 2}).encode()
    statuses, parts = [], [body]

    async def receive() -> dict[str, object]:
        if not parts:
            await asyncio.Event().wait()  # the client stays
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = await site.call("/v1/completions", receive, send)
    assert statuses == [200]
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is Generation]  # asks no proxy
    assert (len(kept), scope["type"]) == (0, "http"), "of what the scope holds"


@pytest.mark.parametrize("root", ["", "/api"])
async def test_routes_are_found(root: str) -> None:
    async with on_a_port(root_path=root) as site:
        for prefix in {"", root}:
            for path in ("/v1/models", "/models", "/version", "/ping", "/load", "/health"):
                reply = await site.client.get(prefix + path)
                assert reply.status_code == 200, (prefix, path)
            reply = await site.client.post(
                f"{prefix}/completions", json={"prompt": "a", "max_tokens": 1}
            )
            assert reply.status_code == 200
            assert (await site.client.get(f"{prefix}/models/nobody")).status_code == 404
            model = (await site.client.get(f"{prefix}/v1/models")).json()["data"][0]
            reply = await site.client.get(f"{prefix}/models/{model['id']}")
            assert reply.json() == model
            for path in ("/score", "/chat/completions/render", "/systemone", "/systemone/permute"):
                reply = await site.client.post(prefix + path, json={})
                assert reply.status_code in (400, 422), (prefix, path)
            assert (await site.client.get(f"{prefix}/nothing")).status_code == 404
        assert (await site.client.post("/ping")).json() == {"status": "ok"}
        assert (await site.client.get("/load")).json() == {"server_load": 0}
        received = site.metric("tailrace_requests_received_total")
        assert received == 4 * len({"", root}), "all but the rendering count as what they are"
