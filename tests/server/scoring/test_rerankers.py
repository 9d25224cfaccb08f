"""Prompts of rerankers as their authors write them, and scores of what is read after them."""

from __future__ import annotations

import numpy as np
import pytest

from server.scoring.rerankers import QWEN3, Pair, Reranker, relevance
from server.scoring.spec import ScoringSpec
from tests.fake_values import item_scores, value_row
from tests.fakes import byte_tokenizer

PAIRS = [Pair("why {x}?", "because"), Pair("why {x}?", "no {query} idea")]


def prompts_of(spec: ScoringSpec) -> list[str]:
    ends = np.cumsum(spec.items.lens)[:-1]
    query = spec.query.tolist()
    return [bytes([*query, *item]).decode() for item in np.split(spec.items.token_ids, ends)]


def reranker(model: str = "", template: str | None = None) -> Reranker:
    return Reranker(byte_tokenizer(), template, model)


def test_qwen3() -> None:
    spec = reranker("Qwen/Qwen3-Reranker-0.6B").spec(PAIRS, None, None)
    assert prompts_of(spec)[1] == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
        "answer the query\n<Query>: why {x}?\n<Document>: no {query} idea<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert len(spec.query) == prompts_of(spec)[0].index("because"), "the query is shared"
    own = reranker("x", "qwen3").spec(PAIRS, "Find jokes", None)
    assert "<Instruct>: Find jokes\n<Query>" in prompts_of(own)[0]


def test_mxbai() -> None:
    spec = reranker("/models/mxbai-rerank-base-v2").spec(PAIRS, None, None)
    assert prompts_of(spec)[0] == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\nquery: why {x}?\ndocument: because\n"
        "You are a search relevance expert who evaluates how well documents match search queries. "
        "For each query-document pair, carefully analyze the semantic relationship between them, "
        "then provide your binary relevance judgment (0 for not relevant, 1 for relevant).\n"
        "Relevance:<|im_end|>\n<|im_start|>assistant\n"
    )
    instructed = reranker("", "mxbai-v2").spec(PAIRS, "Find jokes", None)
    assert "user\ninstruction: Find jokes\nquery: why" in prompts_of(instructed)[0]


@pytest.mark.parametrize(
    ("model", "labels"), [("qwen3", "yn"), ("mxbai-v2", "10"), ("bge-gemma", "Y")]
)
def test_raw_scores_are_of_logits(model: str, labels: str) -> None:
    """The fake's logits are those of `value_row`; the byte tokenizer's labels are first bytes."""
    each = reranker(template=model)
    spec = each.spec(PAIRS, None, None)
    raw = each.raw_scores(spec, item_scores(spec.request(1)))
    for item, length in enumerate(spec.items.lens):
        row = value_row(len(spec.query) + int(length)).astype(np.float64)
        want = row[ord(labels[0])] - (row[ord(labels[1])] if len(labels) > 1 else 0)
        assert raw[item] == pytest.approx(want, abs=1e-5)  # float32 logprobs of some -10


def test_a_template_of_the_operator_s() -> None:
    each = reranker("any", "{{ query }}|{{ document }}|{{ instruction }}")
    spec = each.spec(PAIRS, "i", None)
    assert prompts_of(spec) == ["why {x}?|because|i", "why {x}?|no {query} idea|i"]
    assert spec.trees[0].id_lists.tolist() == [[ord("y"), ord("n")]]


def test_documents_are_cut_where_asked() -> None:
    spec = reranker("any", "{{ document }}.").spec(PAIRS, None, 4)
    assert prompts_of(spec) == ["beca.", "no {."]


def test_unknown_models() -> None:
    assert not reranker("Qwen/Qwen3-0.6B").is_known
    assert reranker("Qwen3-Reranker-8B").is_known
    assert QWEN3.recognised_by == ("qwen3-reranker",)


def test_relevance() -> None:
    np.testing.assert_allclose(relevance(np.array([0.0, np.log(3), -np.log(3)])), [0.5, 0.75, 0.25])
