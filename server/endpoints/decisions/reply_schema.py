"""Replies of decisions, as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class BestOther(BaseModel):
    """The best first token that begins no label."""

    token_id: int
    token: str
    logprob: float


class OrderDiagnostics(BaseModel):
    """What was read where the options were shown in one order."""

    order: list[int] = Field(description="The options as they were shown, by index.")
    thought: str | None = Field(None, description="What the model thought, with `reasoning`.")
    logprobs: list[float] = Field(description="Of each option's label, in the request's order.")
    other_logprob: float = Field(description="Of all that begins with no label, together.")
    best_other: BestOther


class DecisionDiagnostics(BaseModel):
    """How far to trust an answer."""

    label_mass: float = Field(description="The probability that a reply begins with a label.")
    argmax_is_label: bool = Field(description="Whether the likeliest token begins a label.")
    spread: float = Field(
        description="The most that an option's probability differs between two orders."
    )
    argmax_is_stable: bool = Field(description="Whether each order has the same likeliest option.")
    orders: list[OrderDiagnostics]


class DecisionAnswer(BaseModel):
    """The answer to one question, in the order of the questions."""

    type: Literal["predicate", "choice", "score"]
    name: str | None
    probability: float | None = Field(None, description="Of a predicate.")
    choice: str | bool | None = Field(None, description="The likeliest value of a choice.")
    score: float | None = Field(None, description="The expected index of the levels, from 0.")
    confidence: float | None = Field(
        None, description="How concentrated the probabilities are, not how often they are right."
    )
    probabilities: list[dict[str, Any]] | None = None
    diagnostics: DecisionDiagnostics | None = None


class DecisionUsage(BaseModel):
    """Nothing is generated but thoughts; the state counts once."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class DecisionsReply(BaseModel):
    """All answers."""

    id: str
    object: Literal["decision"]
    created: int
    model: str
    answers: list[DecisionAnswer]
    usage: DecisionUsage
    wording: Literal["chat", "plain"] = Field(
        description='"plain" where the model has no chat template.'
    )
