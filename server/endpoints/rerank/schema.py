"""Bodies of rerank requests, as Jina's, Cohere's, vLLM's, SGLang's and TEI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from server.schema.base import BodyModel, InnerModel, shown
from server.schema.fields import Accepted, ModelName, NotYet, Only, RequestId

MAX_DOCUMENTS = 1 << 16


def _document(value: Any) -> Any:
    """Read an object of a text as that text, as Jina's and Cohere's older clients send it."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return value["text"]
    if not isinstance(value, str):
        raise ValueError(f"must be a text, got {shown(value)}")
    return value


Documents = Annotated[
    list[Annotated[str, BeforeValidator(_document, json_schema_input_type=str | dict[str, Any])]],
    Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True),
]


class RerankRequest(BodyModel):
    """Rank documents by their relevance to a query.

    With `texts` the reply has TEI's shape, with `instruct` SGLang's: both are lists.
    """

    model: ModelName | None = None
    query: Annotated[str, Field(min_length=1)]
    documents: Documents | None = None
    texts: Documents | None = Field(None, description="TEI's name of `documents`.")
    instruction: str | None = Field(None, description="What relevance means; the model's default.")
    instruct: str | None = Field(
        None, description="SGLang's name of `instruction`: the reply is a list."
    )
    top_n: int | None = Field(None, ge=0, description="The best so many; 0 for all.")
    return_documents: bool | None = Field(None, description="The default is true.")
    return_text: bool | None = Field(None, description="TEI's; the default is false.")
    raw_scores: bool | None = Field(None, description="TEI's: scores are not mapped to 0 to 1.")
    use_activation: bool | None = Field(None, description="With false, scores are raw.")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, description="Longer documents are cut at their ends; by default none is."
    )
    truncate: Annotated[Any, Only(False)] = None
    truncation_direction: Accepted = None
    max_chunks_per_doc: Accepted = None
    priority: Accepted = None
    relevant_spans: NotYet = None
    rank_fields: NotYet = None
    truncate_prompt_tokens: NotYet = None
    max_tokens_per_query: NotYet = None
    chat_template_kwargs: NotYet = None
    user: Accepted = None
    request_id: RequestId = None

    @model_validator(mode="after")
    def _one_of_each(self) -> RerankRequest:
        for first, second in (("documents", "texts"), ("instruction", "instruct")):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"{second} is another name of {first}: give one of them")
        if self.documents is None and self.texts is None:
            raise ValueError("documents is required")
        return self

    @property
    def is_tei(self) -> bool:
        """Whether the reply has TEI's shape."""
        return self.texts is not None

    @property
    def is_sglang(self) -> bool:
        """Whether the reply has SGLang's shape."""
        return self.instruct is not None and not self.is_tei

    @property
    def raw(self) -> bool:
        """Whether scores are raw."""
        return bool(self.raw_scores) or self.use_activation is False


class RankedDocument(InnerModel):
    """A document."""

    text: str


class RerankResult(BaseModel):
    """One document's relevance; the most relevant comes first."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class RerankReply(BaseModel):
    """The reply in the shape that Jina's, Cohere's and vLLM's clients read."""

    id: str
    model: str
    results: list[RerankResult]
    usage: dict[str, Any]
    meta: dict[str, Any]
