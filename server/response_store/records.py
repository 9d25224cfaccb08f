"""What the store keeps of a response, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from engine.arrays import Int32Array

Json = dict[str, Any]
QUEUED, IN_PROGRESS, FAILED, CANCELLED = "queued", "in_progress", "failed", "cancelled"


class GeneratedRun(NamedTuple):
    """A generated reply within the text of its conversation.

    Attributes:
        start: the characters of the prompt, after which the reply begins.
        token_ids: the generated ids, int32 [num_generated].
    """

    start: int
    token_ids: Int32Array


class NewResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it begins.

    Attributes:
        id: as clients know it.
        owner: digest of the API key that made it; empty where there are no keys.
        chain: keys of the responses that it continues, oldest first.
        reply: the response object as it is now.
        items: its own input, each item with an `id`.
    """

    id: str
    owner: bytes
    chain: Sequence[int]
    reply: Json
    items: Sequence[Json]


class StoredReply(NamedTuple):
    """A response object as it was last written.

    Attributes:
        key: its number in the file.
        raw: the object as JSON.
    """

    key: int
    status: str
    raw: bytes


class StoredConversation(NamedTuple):
    """All items up to and with the output of one response, oldest first.

    Attributes:
        chain: keys of the responses, oldest first.
        status: of the last.
        items: as they were stored.
        runs: what the model generated, where it is known.
    """

    chain: list[int]
    status: str
    items: list[Json]
    runs: list[GeneratedRun]


class StoreError(Exception):
    """The file cannot be read or written."""


class TooLargeError(Exception):
    """What would be read takes more bytes than it may."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


class BrokenChainError(Exception):
    """A response before the one that is asked for was deleted or has expired."""


class TakenIdError(Exception):
    """The client has chosen the id of a response that is stored."""
