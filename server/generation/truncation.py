"""Prompts that a request lets be cut to a number of tokens."""

from __future__ import annotations

from engine.contracts.info import EngineInfo
from server.errors import bad_request
from server.generation.spec import Truncation
from server.text.tokenizer import Side


def wanted_truncation(
    keep: int | None, side: Side | None, *, reply_tokens: int, info: EngineInfo
) -> Truncation | None:
    """How prompts are cut to `keep` tokens; None where they are not. Raises `ApiError`.

    Args:
        reply_tokens: limit of the reply, for which a `keep` of -1 leaves room.
    """
    if keep is None:
        return None
    if keep == 0 or keep > info.max_model_len:
        words = f"must be -1 or in [1, {info.max_model_len}], got {keep}"
        raise bad_request("truncate_prompt_tokens", f"truncate_prompt_tokens {words}")
    if keep == -1:
        keep = max(info.max_model_len - reply_tokens, 1)
    return Truncation(keep, side or "left")
