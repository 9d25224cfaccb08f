"""Replies of `/v1/systemone`, as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from server.endpoints.decisions.reply_schema import DecisionUsage


class SystemOneAnswer(BaseModel):
    """The answer to one question."""

    type: Literal["noul", "choice", "score"]
    noul: float | None = Field(None, description="The probability that it is so.")
    choice: str | None = None
    score: float | None = Field(None, description="The expected level, from 0.")
    confidence: float
    legend: dict[str, str] | None = None
    probabilities: dict[str, float]


class SystemOneReply(BaseModel):
    """Answers by the questions' names."""

    id: str
    object: Literal["structured_decision"]
    created: int
    model: str
    answers: dict[str, SystemOneAnswer]
    diagnostics: dict[str, dict[str, Any]] = Field(
        description="`label_mass` and `argmax_is_label` of each question; with `diagnostics` what "
        "/v1/decisions describes it."
    )
    usage: DecisionUsage
    wording: Literal["chat", "plain"]


class PermuteRun(BaseModel):
    """One order of the options."""

    order: list[str]
    probabilities: dict[str, float]
    choice: str
    latency_ms: float = Field(description="Of all runs, which are read together.")


class PermuteReply(BaseModel):
    """What each order of a question's options gave."""

    runs: list[PermuteRun]
    argmax_stable: bool
    spread: float = Field(
        description="The most that an option's probability differs between two runs."
    )


class ErrorDetail(BaseModel):
    """What is wrong, and where."""

    loc: list[str | int]
    msg: str
    type: str


class DetailReply(BaseModel):
    """Every error of these routes."""

    detail: list[ErrorDetail] | str
