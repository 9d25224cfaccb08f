"""Replies of vLLM's routes for trainers, as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class PausedReply(BaseModel):
    """The engine is paused."""

    status: Literal["paused"]
    kept: int = Field(description="Requests that go on at `/resume`.")


class ResumedReply(BaseModel):
    """The engine goes on."""

    status: Literal["resumed"]


class IsPausedReply(BaseModel):
    """Whether the engine is paused."""

    is_paused: bool


class AbortedReply(BaseModel):
    """Requests were ended."""

    status: Literal["aborted"]
    aborted: int


class SuccessReply(BaseModel):
    """Whether it was done."""

    success: bool


class WorldSizeReply(BaseModel):
    """Processes that hold a part of the model each."""

    world_size: int
