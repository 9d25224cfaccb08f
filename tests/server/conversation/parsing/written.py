"""Calls written as the syntax of a format has them."""

from __future__ import annotations

import json

from server.conversation.parsing.syntax import CallText


def write(text: CallText, arguments: dict[str, object]) -> str:
    if text.arguments == "json":
        inner = json.dumps(arguments, ensure_ascii=False)
    elif text.arguments == "python":
        inner = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    else:
        inner = "".join(
            f"{field.begin}{arguments[key]}{field.end}"
            for key, field in text.fields.items()
            if key in arguments
        )
    return text.begin + inner + text.end
