"""Streams of chats, joined to replies."""

from __future__ import annotations

import json
from typing import Any


def joined(text: str) -> dict[str, Any]:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    choice: dict[str, Any] = {"message": message, "token_ids": []}
    usage = None
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        assert "error" not in chunk, chunk
        usage = chunk.get("usage") or usage
        for part in chunk["choices"]:
            choice["finish_reason"] = part["finish_reason"]
            choice["token_ids"] += part.get("token_ids") or []
            delta = part["delta"]
            assert delta or part["finish_reason"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    assert call["function"]["arguments"] == ""
                    message["tool_calls"].append({"function": dict(call["function"])})
                else:
                    own = message["tool_calls"][call["index"]]["function"]
                    own["arguments"] += call["function"]["arguments"]
    return {"choices": [choice], "usage": usage}
