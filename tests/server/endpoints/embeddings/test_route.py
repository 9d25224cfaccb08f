"""`/v1/embeddings` over HTTP on a fake engine, with the `openai` package too; refusals."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import pytest

from server.config import DenseLayer, Pooling
from server.endpoints.embeddings.schema import EmbeddingsReply
from server.scoring import pooling as pooling_module
from tests.server.conftest import MODEL, Site, error_of, in_process, on_a_port


async def post(site: Site, status: int = 200, **body: Any) -> Any:
    reply = await site.client.post("/v1/embeddings", json={"model": MODEL} | body)
    assert reply.status_code == status, reply.text
    return reply.json() if status == 200 else error_of(reply)


def want(last: int, dimensions: int = 8) -> np.ndarray:
    """The fake's hidden state of a last token, cut and normalized."""
    vector: np.ndarray = np.sin(last + np.arange(8.0))[:dimensions]
    vector /= np.linalg.norm(vector)
    return vector


async def test_one_and_several_texts_and_ids(site: Site) -> None:
    for given, lasts in [
        ("abc", [99]),
        (["abc", "abd"], [99, 100]),
        ([5, 6], [6]),
        ([[5, 6], [7]], [6, 7]),
    ]:
        reply = await post(site, input=given)
        EmbeddingsReply.model_validate(reply)
        assert [each["index"] for each in reply["data"]] == list(range(len(lasts)))
        for each, last in zip(reply["data"], lasts, strict=True):
            np.testing.assert_allclose(each["embedding"], want(last), atol=1e-6)
    assert reply["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_the_vectors_of_several_requests_are_in_order(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling_module, "LAST_TOKENS", 2)
    for encoding_format in ("float", "base64"):
        given = [[5, 60 + index] for index in range(9)]
        reply = await post(site, input=given, encoding_format=encoding_format)
        for index, each in enumerate(reply["data"]):
            vector = each["embedding"]
            if encoding_format == "base64":
                vector = np.frombuffer(base64.b64decode(vector), dtype="<f4")
            assert each["index"] == index
            np.testing.assert_allclose(vector, want(60 + index), atol=1e-6)
    assert reply["usage"]["prompt_tokens"] == 18


async def test_base64_and_fewer_dimensions(site: Site) -> None:
    reply = await post(site, input="abc", encoding_format="base64", dimensions=3)
    vector = np.frombuffer(base64.b64decode(reply["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(vector, want(99, 3), atol=1e-6)


async def test_the_openai_package() -> None:
    async with (
        on_a_port() as site,
        openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="x") as client,
    ):
        reply = await client.embeddings.create(model=MODEL, input=["abc", "b"])
    np.testing.assert_allclose(reply.data[0].embedding, want(99), atol=1e-6)
    assert reply.usage.total_tokens == 4


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "is required"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": ["a", ""]}, "input", "empty string at [1]"),
        ({"input": [[264]]}, "input", "id 264"),
        ({"input": ["a", "b" * 300]}, "input[1]", "--max-model-len"),
        ({"input": ["a", "b" * 10_000]}, "input[1]", "(--max-model-len), got at least "),
        ({"input": "a", "dimensions": 9}, "dimensions", "at most 8, got 9"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "base64"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "not available"),
    ],
)
async def test_refused(site: Site, body: dict[str, Any], param: str, words: str) -> None:
    error = await post(site, 400, **body)
    assert (error["param"], words in error["message"]) == (param, True), error


async def test_means_and_a_dense_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several requests to the engine; `dimensions` is bounded by the layer's."""
    monkeypatch.setattr(pooling_module, "MEAN_TOKENS", 4)
    weight = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    layer = DenseLayer(weight=weight, bias=np.ones(3, np.float32), activation="tanh")
    texts = [[5, 6, 90], [7], [5, 6], [1, 2, 3, 4, 5]]
    async with in_process(pooling=Pooling(mode="mean", layers=(layer,))) as other:
        reply = await post(other, input=texts)
        error = await post(other, 400, input=texts, dimensions=4)
    for each, ids in zip(reply["data"], texts, strict=True):
        mean = np.sin(np.array(ids)[:, None] + np.arange(8.0)).mean(axis=0)
        vector = np.tanh(weight.astype(np.float64) @ mean + 1)
        np.testing.assert_allclose(each["embedding"], vector / np.linalg.norm(vector), atol=1e-6)
    assert reply["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    assert "at most 3, got 4" in error["message"]


async def test_a_pooling_that_is_not_served() -> None:
    async with in_process(pooling=Pooling(refusal="its pooling is mean_tokens")) as other:
        assert "mean_tokens" in (await post(other, 400, input="a"))["message"]
