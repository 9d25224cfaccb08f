"""Errors of chats told in the words of the requests that the chats were made of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from server.errors import ApiError

Renaming = Sequence[tuple[str, str]]
"""Regular expressions that begin with a chat's field, and what stands for each."""
_MESSAGE = re.compile(r"\bmessages\[(\d{1,9})\]")
_WHOLE = re.compile(r"^(?:prompt|messages)\b(?!\[)")
"""The conversation, or the field of the completion that a chat becomes."""


def renamed(error: ApiError, renaming: Renaming, places: Sequence[str], whole: str) -> ApiError:
    """The error with other names of fields, in its sentence too.

    Names within a path, such as those of a schema's properties, are left as they are.

    Args:
        places: where in the request each of the chat's messages is.
        whole: the field that the messages were made of.
    """

    def place(match: re.Match[str]) -> str:
        index = int(match[1])
        return places[index] if index < len(places) else match[0]  # a template may say anything

    def told(text: str) -> str:
        for pattern, name in renaming:
            text = re.sub(rf"(?<![\w.]){pattern}", name, text)
        text = _WHOLE.sub(whole, text)
        return _MESSAGE.sub(place, text)

    param = error.param and told(error.param)
    return ApiError(
        error.status, told(error.message), param=param, code=error.code, headers=error.headers
    )
