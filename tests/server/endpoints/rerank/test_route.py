"""Rerank over HTTP on a fake engine: the shapes that clients read, and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from server.endpoints.rerank.schema import RerankReply
from server.scoring.rerankers import relevance
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, Site, error_of, in_process

PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
DOCUMENTS = ["in Rome", "no", "a long way off", "here"]
TEMPLATE = "{{ query }} {{ document }}"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with in_process(FakeEngine(max_model_len=256), rerank_template=TEMPLATE) as made:
        yield made


async def post(site: Site, path: str = "/v1/rerank", status: int = 200, **body: Any) -> Any:
    body = {"model": MODEL, "query": "where?"} | body
    reply = await site.client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json() if status == 200 else error_of(reply)


@pytest.mark.parametrize("path", PATHS)
async def test_objects(site: Site, path: str) -> None:
    reply = await post(site, path, documents=DOCUMENTS)
    RerankReply.model_validate(reply, strict=True)
    results = reply["results"]
    assert sorted(each["index"] for each in results) == [0, 1, 2, 3]
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert all(each["document"]["text"] == DOCUMENTS[each["index"]] for each in results)
    assert reply["usage"]["prompt_tokens"] == len("where? ") + sum(map(len, DOCUMENTS))


async def test_the_best_few_without_documents(site: Site) -> None:
    whole = (await post(site, documents=DOCUMENTS))["results"]
    few = await post(
        site,
        documents=[{"text": text} for text in DOCUMENTS],
        top_n=2,
        return_documents=False,
    )
    assert few["results"] == [
        {"index": each["index"], "relevance_score": each["relevance_score"]} for each in whole[:2]
    ]


async def test_no_limit_is_all_of_them(site: Site) -> None:
    whole, limited = [await post(site, documents=DOCUMENTS, top_n=n) for n in (None, 0)]
    assert limited["results"] == whole["results"]
    assert len(whole["results"]) == len(DOCUMENTS)


async def test_texts_are_answered_with_a_list(site: Site) -> None:
    whole = (await post(site, documents=DOCUMENTS))["results"]
    listed = await post(site, "/rerank", texts=DOCUMENTS)
    assert [(each["index"], each["score"]) for each in listed] == [
        (each["index"], each["relevance_score"]) for each in whole
    ]
    assert listed[0].keys() == {"index", "score"}
    raw = await post(site, "/rerank", texts=DOCUMENTS, raw_scores=True, return_text=True)
    assert [each["text"] for each in raw] == [DOCUMENTS[each["index"]] for each in listed]
    np.testing.assert_allclose(
        relevance(np.array([each["score"] for each in raw])), [each["score"] for each in listed]
    )


@pytest.mark.parametrize("path", PATHS)
async def test_instruct_is_answered_with_a_list_of_texts(site: Site, path: str) -> None:
    whole = (await post(site, documents=DOCUMENTS, instruction="cities"))["results"]
    listed = await post(site, path, documents=DOCUMENTS, instruct="cities")
    assert listed == [
        {
            "score": each["relevance_score"],
            "document": each["document"]["text"],
            "index": each["index"],
        }
        for each in whole
    ]
    few = await post(
        site, path, documents=DOCUMENTS, instruct="cities", top_n=2, return_documents=False
    )
    assert few == [{"score": each["score"], "index": each["index"]} for each in listed[:2]]


async def test_texts_decide_beside_instruct(site: Site) -> None:
    listed = await post(site, "/rerank", texts=DOCUMENTS, instruct="cities")
    assert listed == await post(site, "/rerank", texts=DOCUMENTS, instruction="cities")


async def test_a_long_document_is_cut_where_that_is_asked_for(site: Site) -> None:
    """Longer than what is encoded at once, and than the context: what is cut off counts nowhere."""
    reply = await post(site, documents=["a", "b" * 10_000], max_tokens_per_doc=9)
    assert reply["usage"]["prompt_tokens"] == len("where? ") + 1 + 9


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({}, None, "documents is required"),
        ({"documents": []}, "documents", "at least 1"),
        ({"documents": ["a"], "texts": ["a"]}, None, "another name of documents"),
        ({"documents": [5]}, "documents[0]", "must be a text, got 5"),
        ({"documents": ["a"], "query": ""}, "query", "at least 1"),
        ({"documents": ["a", "b" * 300]}, "documents", "documents[1] must fit"),
        ({"documents": ["a", "b" * 10_000]}, "documents", "(--max-model-len), got at least "),
        (
            {"documents": ["a", "b"], "query": "b" * 10_000, "max_tokens_per_doc": 9},
            "documents",
            "(--max-model-len), got at least ",
        ),
        ({"documents": ["a"], "top_n": -1}, "top_n", "at least 0"),
        ({"documents": ["a"], "truncate": True}, "truncate", "not available"),
    ],
)
async def test_refused(site: Site, changes: dict[str, Any], param: str | None, words: str) -> None:
    error = await post(site, status=400, **changes)
    assert (error["param"], words in error["message"]) == (param, True), error


async def test_a_model_that_is_no_reranker() -> None:
    async with in_process() as plain:
        error = await post(plain, status=400, documents=["a"])
    assert "--rerank-template" in error["message"]


async def test_the_sum_of_tokens_is_bounded() -> None:
    async with in_process(rerank_template=TEMPLATE, max_scoring_tokens=40) as small:
        error = await post(small, status=400, documents=[letter * 9 for letter in "abcde"])
    assert "--max-scoring-tokens" in error["message"]
