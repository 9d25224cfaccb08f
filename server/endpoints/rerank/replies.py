"""Rankings as replies."""

from __future__ import annotations

from typing import Any

import numpy as np

from server.endpoints.rerank.schema import RerankRequest
from server.scoring.labels import Float64Array
from server.scoring.rerankers import relevance

Json = dict[str, Any]


def ranked(body: RerankRequest, raw: Float64Array) -> list[tuple[int, float]]:
    """Documents with their scores, the most relevant first, equal ones in their order."""
    order = np.argsort(-raw, kind="stable")[: body.top_n or None]
    scores = raw if body.raw else relevance(raw)
    return [(index, float(scores[index])) for index in order.tolist()]


def tei_reply(body: RerankRequest, raw: Float64Array) -> list[Json]:
    """A list, as TEI's clients read it."""
    texts = body.texts or []
    return [
        {"index": index, "score": score, **({"text": texts[index]} if body.return_text else {})}
        for index, score in ranked(body, raw)
    ]


def sglang_reply(body: RerankRequest, raw: Float64Array) -> list[Json]:
    """A list, as SGLang's clients read it."""
    documents = body.documents or []
    shows = body.return_documents is not False
    return [
        {"score": score, **({"document": documents[index]} if shows else {}), "index": index}
        for index, score in ranked(body, raw)
    ]


def rerank_reply(
    body: RerankRequest, raw: Float64Array, reply_id: str, model: str, usage: Json
) -> Json:
    """An object, as Jina's, Cohere's and vLLM's clients read it."""
    documents = body.documents or []
    shows = body.return_documents is not False
    return {
        "id": reply_id,
        "model": model,
        "results": [
            {
                "index": index,
                "relevance_score": score,
                **({"document": {"text": documents[index]}} if shows else {}),
            }
            for index, score in ranked(body, raw)
        ],
        "usage": usage,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
