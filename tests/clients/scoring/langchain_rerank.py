"""Rerank of the package `langchain-cohere`."""

from __future__ import annotations

from case import DOCUMENTS, QUERY, base_url, model, note_ranking, report
from langchain_cohere import CohereRerank
from langchain_core.documents import Document

ranker = CohereRerank(
    model=model,
    base_url=base_url.removesuffix("/v1"),
    cohere_api_key="none",
    top_n=len(DOCUMENTS),
)
found = ranker.rerank(DOCUMENTS, QUERY)
note_ranking("rerank", ((each["index"], each["relevance_score"]) for each in found))
kept = ranker.compress_documents([Document(text) for text in DOCUMENTS], QUERY)
note_ranking(
    "compressed",
    ((DOCUMENTS.index(each.page_content), each.metadata["relevance_score"]) for each in kept),
)
report()
