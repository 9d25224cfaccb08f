"""The routes beside completions, and the OpenAPI page."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import jsonschema
import pytest

from server.endpoints.completions.schema import CompletionRequest
from server.version import VERSION
from tests.fake_values import VOCAB_SIZE
from tests.fakes import BOS, EOS
from tests.server.conftest import Site, error_of, in_process, on_a_port
from tests.server.openapi_document import STORED, document


async def test_models(site: Site) -> None:
    (card,) = (await site.client.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("fake", "model", 256)
    assert (await site.client.get("/v1/models/fake")).json() == card
    reply = await site.client.get("/v1/models/a/b")
    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"


async def test_version(site: Site) -> None:
    assert (await site.client.get("/version")).json() == {"version": VERSION}


class TestTokens:
    async def test_there_and_back(self) -> None:
        async with in_process(with_bos=True) as site:
            body = {"prompt": "né", "return_token_strs": True}
            reply = (await site.client.post("/tokenize", json=body)).json()
            assert reply == {
                "count": 4,
                "max_model_len": 256,
                "tokens": [BOS, 110, 0xC3, 0xA9],
                "token_strs": ["<bos>", "n", "Ã", "©"],  # bytes as GPT-2's vocabulary writes them
            }
            tokens = {"tokens": reply["tokens"]}
            assert (await site.client.post("/detokenize", json=tokens)).json() == {
                "prompt": "<bos>né"
            }

    async def test_without_special_tokens(self) -> None:
        async with in_process(with_bos=True) as site:
            body = {"prompt": "a", "add_special_tokens": False}
            reply = (await site.client.post("/tokenize", json=body)).json()
            assert (reply["tokens"], reply["token_strs"]) == ([97], None)

    async def test_special_tokens_in_a_text(self, site: Site) -> None:
        reply = (await site.client.post("/tokenize", json={"prompt": "a<eos>"})).json()
        assert reply["tokens"] == [97, EOS]

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": 5}, "prompt"),
            ("/tokenize", {"prompt": "a", "x": 1}, "x"),
            ("/tokenize", {"prompt": "a", "messages": []}, "messages"),
            ("/detokenize", {"tokens": ["a"]}, "tokens"),
            ("/detokenize", {"tokens": [264]}, "tokens"),
            ("/detokenize", {"tokens": [-1]}, "tokens"),
            ("/detokenize", {"tokens": "a"}, "tokens"),
            ("/detokenize", {"tokens": [1] * (2**21 + 1)}, "tokens"),
            ("/tokenize", {"prompt": "a" * (2**21 + 1)}, "prompt"),
        ],
    )
    async def test_refused(self, site: Site, path: str, body: Any, param: str) -> None:
        reply = await site.client.post(path, json=body)
        assert reply.status_code == 400
        assert error_of(reply)["param"] == param

    async def test_other_models_are_not_found(self, site: Site) -> None:
        reply = await site.client.post("/tokenize", json={"prompt": "a", "model": "x"})
        assert reply.status_code == 404

    async def test_tokenizer_info(self, site: Site) -> None:
        info = (await site.client.get("/tokenizer_info")).json()
        assert info["eos_token"] == "<eos>"


DESCRIBED = [
    ("/generate", {"input_ids": [[5], [6]], "sampling_params": {"max_new_tokens": 1}}, 200),
    ("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}, 200),
    ("/invocations", {"prompt": "a", "max_tokens": 1, "stream": True}, 200),
    ("/v1/systemone", {}, 422),
    ("/v1/systemone/separate", {}, 422),
    ("/v1/systemone/permute", {}, 422),
    ("/abort_request", {"abort_all": True}, 200),
    ("/abort_request", {}, 400),
    ("/flush_cache", None, 200),
    ("/continue_generation", None, 200),
    ("/finish_weight_update", None, 200),
    ("/begin_weight_update", {"selector": 5}, 400),
    ("/end_weight_update", None, 200),
    ("/v1/load_lora_adapter", {}, 400),
]
"""Paths, bodies, and the statuses of their replies."""


class TestOpenApi:
    async def test_bodies_and_errors_are_described(self, site: Site) -> None:
        page = (await site.client.get("/openapi.json")).json()
        route = page["paths"]["/v1/completions"]["post"]
        schema = route["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/CompletionRequest"}
        described = page["components"]["schemas"]["CompletionRequest"]["properties"]
        assert set(described) == set(CompletionRequest.model_fields)
        assert set(route["responses"]) >= {"200", "400", "401", "404", "413", "429", "500", "503"}
        for path, methods in page["paths"].items():
            for method, described_route in methods.items():
                assert described_route["responses"], (path, method)

    @pytest.mark.parametrize(("path", "body", "status"), DESCRIBED)
    async def test_replies_are_as_described(self, path: str, body: Any, status: int) -> None:
        async with in_process(weight_updates=True, enable_lora=True) as site:
            page = (await site.client.get("/openapi.json")).json()
            reply = await site.client.post(path, json=body)
        described = page["paths"][path]["post"]
        assert reply.status_code == status, reply.text
        media = reply.headers.get("content-type", "").partition(";")[0]
        contents = described["responses"][str(status)].get("content", {})
        assert media in contents or not (media or contents)
        if media == "application/json":
            schema = contents[media]["schema"] | {"components": page["components"]}
            jsonschema.validate(reply.json(), schema)

    async def test_routes_for_trainers_may_have_no_body_and_be_refused(self) -> None:
        async with in_process(weight_updates=True) as site:
            page = (await site.client.get("/openapi.json")).json()
        for path in ("/abort_requests", "/pause_generation", "/begin_weight_update"):
            described = page["paths"][path]["post"]
            assert not described["requestBody"]["required"], path
            assert "409" in described["responses"], path
        assert page["paths"]["/update_weights"]["post"]["requestBody"]["required"]

    async def test_a_null_schema_of_a_text_is_as_described(self, site: Site) -> None:
        page = (await site.client.get("/openapi.json")).json()
        value = {"type": "text", "name": None, "schema": None, "strict": None}
        body = {"input": "a", "text": {"format": value}, "max_output_tokens": 1}
        schema = {"$ref": "#/components/schemas/ResponsesRequest", "components": page["components"]}
        jsonschema.validate(body, schema)

    async def test_every_reference_leads_somewhere(self, site: Site) -> None:
        page = (await site.client.get("/openapi.json")).json()

        def references(node: Any) -> list[str]:
            if isinstance(node, list):
                return [ref for item in node for ref in references(item)]
            if not isinstance(node, dict):
                return []
            here = [node["$ref"]] if "$ref" in node else []
            return here + [ref for item in node.values() for ref in references(item)]

        found = set(references(page))
        known = {f"#/components/schemas/{name}" for name in page["components"]["schemas"]}
        assert found
        assert found <= known

    async def test_ids_are_bounded_by_the_vocabulary(self, site: Site) -> None:
        page = (await site.client.get("/openapi.json")).json()
        tokens = page["components"]["schemas"]["DetokenizeRequest"]["properties"]["tokens"]
        assert tokens["items"]["maximum"] == VOCAB_SIZE - 1

    async def test_the_key_can_be_given(self, site: Site) -> None:
        page = (await site.client.get("/openapi.json")).json()
        assert page["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
        assert {"key": []} in page["security"]

    async def test_it_is_built_off_the_event_loop(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []

        def build(**_: Any) -> dict[str, Any]:
            seen.append(threading.get_ident())
            return {}

        monkeypatch.setattr("server.schema.openapi.get_openapi", build)
        for _ in range(2):
            assert "components" in (await site.client.get("/openapi.json")).json()
        assert len(seen) == 1
        assert seen[0] != threading.get_ident()

    async def test_the_prefix_of_a_proxy_is_where_calls_go(self) -> None:
        async with on_a_port(root_path="/proxy") as site:
            page = (await site.client.get("/openapi.json")).json()
            assert page["servers"] == [{"url": "/proxy"}]

    async def test_the_stored_document_is_this_one(self) -> None:
        """Other programs read it; `make openapi` writes it anew."""
        assert json.loads(STORED.read_text()) == document()


class TestDocs:
    async def test_the_page_loads_nothing_from_elsewhere(self) -> None:
        async with on_a_port(root_path="/proxy") as site:
            page = await site.client.get("/docs")
            assert page.headers["content-type"].startswith("text/html")
            links = re.findall(r'(?:src|href)="([^"]*)"', page.text)
            assert {"docs/swagger-ui.css", "docs/swagger-ui-bundle.js", "docs/page.js"} < set(links)
            for link in links:
                if link != "data:,":
                    assert not link.startswith(("/", "http"))  # relative, for a proxy's sake
                    assert (await site.client.get(f"/{link}")).status_code == 200, link
            assert "default-src 'self'" in page.headers["content-security-policy"]

    async def test_the_assets_are_what_they_say(self, site: Site) -> None:
        script = await site.client.get("/docs/swagger-ui-bundle.js")
        assert script.headers["content-encoding"] == "gzip"
        assert script.headers["content-type"].startswith("text/javascript")
        assert "SwaggerUIBundle" in script.text
        assert "sourceMappingURL" not in script.text
        assert ".swagger-ui" in (await site.client.get("/docs/swagger-ui.css")).text
        assert 'url: "openapi.json"' in (await site.client.get("/docs/page.js")).text

    @pytest.mark.parametrize("name", ["LICENSE", "..%2fapp.py", "x", "swagger-ui.css.gz"])
    async def test_nothing_else_is_served(self, site: Site, name: str) -> None:
        assert (await site.client.get(f"/docs/{name}")).status_code == 404
