"""`/v1/rerank`, `/v2/rerank` and `/rerank`: documents in the order of their relevance to a query.

In reading order: `schema` (Jina's, Cohere's, vLLM's and TEI's bodies as one), `replies`, `route`.
"""
