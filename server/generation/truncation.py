"""Prompts that a request lets be cut to a number of tokens."""

from __future__ import annotations

from typing import Literal, Protocol

from engine.contracts.info import EngineInfo
from server.errors import ClientNames
from server.generation.spec import Truncation


class TruncationFields(Protocol):
    """The fields of a body that say so."""

    @property
    def truncate_prompt_tokens(self) -> int | None: ...

    @property
    def truncation_side(self) -> Literal["left", "right"] | None: ...


def wanted_truncation(
    body: TruncationFields, max_tokens: int, info: EngineInfo, names: ClientNames
) -> Truncation | None:
    """How a body's prompts are cut; None where they are not. Raises `ApiError`.

    Args:
        max_tokens: limit of the reply, for which -1 leaves room.
    """
    keep = body.truncate_prompt_tokens
    if keep is None:
        return None
    if keep == 0 or keep > info.max_model_len:
        words = f"must be -1 or in [1, {info.max_model_len}], got {keep}"
        raise names.refuse("truncate_prompt_tokens", words)
    if keep == -1:
        keep = max(info.max_model_len - max_tokens, 1)
    return Truncation(keep, body.truncation_side or "left")
