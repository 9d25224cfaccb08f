"""Texts and ids as the OpenAPI page describes them."""

from __future__ import annotations

from pydantic import BaseModel


class TokenizeReply(BaseModel):
    """The ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(BaseModel):
    """The text of ids."""

    prompt: str
