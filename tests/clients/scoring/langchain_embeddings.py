"""Embeddings of the package `langchain-openai`, with texts and not ids of OpenAI's tokens."""

from __future__ import annotations

from case import DOCUMENTS, base_url, model, note_vectors, report
from langchain_openai import OpenAIEmbeddings

embeddings = OpenAIEmbeddings(
    model=model, base_url=base_url, api_key="none", check_embedding_ctx_length=False
)
note_vectors("documents", embeddings.embed_documents(DOCUMENTS))
note_vectors("a query each", [embeddings.embed_query(text) for text in DOCUMENTS])
report()
