"""Rerank of the package `cohere`, by its two versions of the API."""

from __future__ import annotations

import cohere
from case import DOCUMENTS, QUERY, base_url, model, note_ranking, report

server = {"base_url": base_url.removesuffix("/v1"), "api_key": "none"}
for name, client in {
    "version 2": cohere.ClientV2(**server),
    "version 1": cohere.Client(**server),
}.items():
    found = client.rerank(model=model, query=QUERY, documents=DOCUMENTS, top_n=len(DOCUMENTS))
    note_ranking(name, ((each.index, each.relevance_score) for each in found.results))
report()
