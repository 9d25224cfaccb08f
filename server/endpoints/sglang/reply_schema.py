"""Replies of SGLang's routes for trainers, as the OpenAPI page describes them."""

from __future__ import annotations

from pydantic import BaseModel


class StatusMessageReply(BaseModel):
    """It was done."""

    message: str
    status: str
