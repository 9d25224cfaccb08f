"""Replies of SGLang's routes of adapters, as the OpenAPI page describes them."""

from __future__ import annotations

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


class AdapterRefusalReply(RootModel[AdaptersReply | ErrorReply]):
    """What the engine refused, or what breaks a rule of the body."""
