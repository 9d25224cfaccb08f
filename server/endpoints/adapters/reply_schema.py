"""Replies of SGLang's routes of adapters, as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, RootModel

from server.schema.replies import ErrorReply


class AdaptersReply(BaseModel):
    """Whether it was done, and if not why; a failure is a 400.

    Attributes:
        loaded_adapters: folders by name.
    """

    success: bool
    error_message: str | None
    loaded_adapters: dict[str, str]


class LoadedReply(BaseModel):
    """It was loaded."""

    status: Literal["ok"]
    lora_name: str


class AdapterRefusalReply(RootModel[AdaptersReply | ErrorReply]):
    """What the engine refused, or what breaks a rule of the body."""
