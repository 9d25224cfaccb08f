"""Decoder-only rerankers, read as their authors read them.

A reranker is asked whether a document answers a query, and the answer is one token. Its raw score
is the difference of two logits, or one logit, at the prompt's last position; a relevance between 0
and 1 is the raw score's sigmoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.messages.step_output import ItemScores
from server.errors import bad_request
from server.schema.ids import IdLists
from server.scoring.label_texts import tree_of
from server.scoring.labels import Float64Array
from server.scoring.spec import ScoringSpec
from server.text.shared_prefix import common_prefix
from server.text.tokenizer import Tokenizer

YES, NO = "yes", "no"


@dataclass(frozen=True)
class RerankerFormat:
    """How a family of rerankers writes a query and a document.

    Attributes:
        recognised_by: parts of a model's name, in lower case.
        pieces: texts that are tokenized apart; `{instruction}`, `{query}` and `{document}` stand
            for those of a request.
        relevant: the text of the token of a relevant document.
        irrelevant: the text whose logit is taken off; None where one logit is the score.
        instruction: what is asked where a request does not say.
    """

    recognised_by: tuple[str, ...]
    pieces: tuple[str, ...]
    relevant: str = YES
    irrelevant: str | None = NO
    instruction: str = ""


QWEN3 = RerankerFormat(
    recognised_by=("qwen3-reranker",),
    pieces=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n",
        "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
MXBAI_V2 = RerankerFormat(
    recognised_by=("mxbai-rerank-base-v2", "mxbai-rerank-large-v2"),
    pieces=(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\n",
        "{instruction}query: {query}",
        "\n",
        "document: {document}",
        "\n",
        "You are a search relevance expert who evaluates how well documents match search queries. "
        "For each query-document pair, carefully analyze the semantic relationship between them, "
        "then provide your binary relevance judgment (0 for not relevant, 1 for relevant).\n"
        "Relevance:",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    relevant="1",
    irrelevant="0",
)
BGE_GEMMA = RerankerFormat(
    recognised_by=("bge-reranker-v2-gemma",),
    pieces=(
        "<bos>",
        "A: {query}",
        "\n",
        "B: {document}",
        "\n",
        "{instruction}",
    ),
    relevant="Yes",
    irrelevant=None,
    instruction="Given a query A and a passage B, determine whether the passage contains an answer "
    "to the query by providing a prediction of either 'Yes' or 'No'.",
)
FORMATS = {"qwen3": QWEN3, "mxbai-v2": MXBAI_V2, "bge-gemma": BGE_GEMMA}


@dataclass(frozen=True)
class Pair:
    """A query and a document."""

    query: str
    document: str


class Reranker:
    """Ranks documents by one model.

    Args:
        template: a name of `FORMATS`, or a Jinja template of the whole prompt over `query`,
            `document` and `instruction`, read by yes and no; None for the format that the model's
            name asks for.
        model: the model's folder or hub id.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None, model: str) -> None:
        self._tokenizer = tokenizer
        self._template: Template | None = None
        name = model.lower()
        known = (each for each in FORMATS.values() if any(p in name for p in each.recognised_by))
        self._format = next(known, None) if template is None else FORMATS.get(template)
        if template is not None and self._format is None:
            self._format = RerankerFormat((), ())
            self._template = ImmutableSandboxedEnvironment().from_string(template)

    @property
    def is_known(self) -> bool:
        """Whether it is known how the model ranks."""
        return self._format is not None

    def spec(
        self, pairs: Sequence[Pair], instruction: str | None, max_document_tokens: int | None
    ) -> ScoringSpec:
        """What the engine is asked; raises `ApiError` for what a template refuses.

        Args:
            max_document_tokens: longer documents are cut at their ends; None cuts nothing.
        """
        assert self._format is not None
        about = self._format
        asked = about.instruction if instruction is None else instruction
        if about is MXBAI_V2 and asked:
            asked = f"instruction: {asked}\n"
        cut = [self._cut(pair, max_document_tokens) for pair in pairs]
        prompts = [self._prompt(pair, asked) for pair in cut]
        prefixed = common_prefix(prompts)
        lens = np.array([len(rest) for rest in prefixed.rests], dtype=np.int32)
        labels = [about.relevant] + ([about.irrelevant] if about.irrelevant is not None else [])
        tree = tree_of(tuple((self._ids(label)[0],) for label in labels))
        items = IdLists(np.concatenate(prefixed.rests), lens)
        return ScoringSpec(prefixed.prefix, items, [tree], np.zeros(len(pairs), dtype=np.int64))

    def _cut(self, pair: Pair, most: int | None) -> Pair:
        if most is None:
            return pair
        ids = self._tokenizer.encode(
            pair.document, add_special_tokens=False, max_tokens=most + 1, truncation_side="right"
        )
        if len(ids) <= most:
            return pair
        return Pair(pair.query, self._tokenizer.decode(ids[:most]))

    def _prompt(self, pair: Pair, instruction: str) -> list[int]:
        values = {"query": pair.query, "document": pair.document, "instruction": instruction}
        if self._template is not None:
            try:
                return self._ids(self._template.render(values))
            except TemplateError as error:
                raise bad_request("query", f"the rerank template refused: {error}") from error
        assert self._format is not None
        pieces = [piece.format(**values) for piece in self._format.pieces]
        return [token for piece in pieces for token in self._ids(piece)]

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def raw_scores(self, spec: ScoringSpec, scores: ItemScores) -> Float64Array:
        """The raw score of every pair, float64 [N]."""
        (found,) = spec.logprobs(scores)
        if found.labels.shape[1] == 1:
            return found.labels[:, 0] + found.log_sums
        difference: Float64Array = found.labels[:, 0] - found.labels[:, 1]
        return difference


def relevance(raw: Float64Array) -> Float64Array:
    """Raw scores as numbers between 0 and 1."""
    found: Float64Array = 1 / (1 + np.exp(-raw))
    return found
