"""Rerank by Jina's API of the package `llama-index-postprocessor-jinaai-rerank`."""

from __future__ import annotations

from case import DOCUMENTS, QUERY, base_url, model, note_ranking, report
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank

ranker = JinaRerank(model=model, base_url=base_url, api_key="none", top_n=len(DOCUMENTS))
nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
found = ranker.postprocess_nodes(nodes, query_str=QUERY)
note_ranking("nodes", ((DOCUMENTS.index(each.node.get_content()), each.score) for each in found))
report()
