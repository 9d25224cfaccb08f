"""What a choice says as blocks, and the message around them: whole, and as events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic_core import from_json

from server.conversation.parsing.message import draw_call_id
from server.conversation.parsing.output import Event
from server.errors import ApiError
from server.generation.prepare import PreparedRequest

Json = dict[str, Any]
SIGNATURE = "tailrace"
"""The signature of all thinking blocks: clients drop or refuse blocks without one."""

BlockType = Literal["text", "thinking", "tool_use"]
_DELTAS: dict[BlockType, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class MessageShape:
    """Writes one message.

    Args:
        shows_thoughts: thoughts become blocks.
        id_chars: the length of calls' ids; None for "toolu_" and 24 characters.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        *,
        shows_thoughts: bool,
        id_chars: int | None,
    ) -> None:
        self._spec = prepared.spec
        had_less = prepared.prompts[0].max_tokens < prepared.spec.max_tokens
        self._length_reason = "model_context_window_exceeded" if had_less else "max_tokens"
        self._shows_thoughts = shows_thoughts
        self._id_chars = id_chars
        self._blocks: list[Json] = []
        self._texts: list[str] = []
        self._is_open = False
        self._end: Json = {"stop_reason": None, "stop_sequence": None}

    def begin(self, usage: Json) -> list[Json]:
        """Begin a stream; a ping follows, as from Anthropic."""
        message = self._message(message_usage(usage) | {"output_tokens": 0})
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def add(self, events: Sequence[Event], entries: list[Json]) -> list[Json]:
        """Add what the choice says next."""
        sent: list[Json] = []
        for kind, text in events:
            if kind == "call":
                call_id = draw_call_id(self._id_chars, "toolu_")
                sent += self._begin({"type": "tool_use", "id": call_id, "name": text, "input": {}})
                continue
            if kind == "content" and not self._is_in("text"):
                sent += self._begin({"type": "text", "text": ""})
            elif kind == "reasoning":
                if not self._shows_thoughts:
                    continue
                if not self._is_in("thinking"):
                    sent += self._begin({"type": "thinking", "thinking": "", "signature": ""})
            sent.append(self._delta(text))
        return sent

    def _is_in(self, kind: BlockType) -> bool:
        return self._is_open and self._blocks[-1]["type"] == kind

    def _begin(self, block: Json) -> list[Json]:
        events = self._close()
        self._is_open = True
        self._blocks.append(block)
        return [*events, self._event("content_block_start", content_block=dict(block))]

    def _delta(self, text: str) -> Json:
        self._texts.append(text)
        kind, field = _DELTAS[self._blocks[-1]["type"]]
        return self._event("content_block_delta", delta={"type": kind, field: text})

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "index": len(self._blocks) - 1, **fields}

    def _close(self) -> list[Json]:
        """End the block that is open, if one is."""
        if not self._is_open:
            return []
        self._is_open = False
        block, text = self._blocks[-1], "".join(self._texts)
        self._texts = []
        events = [self._event("content_block_stop")]
        if block["type"] == "tool_use":
            block["input"] = input_of(text)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            block["signature"] = SIGNATURE
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            events.insert(0, self._event("content_block_delta", delta=delta))
        return events

    def finish(self, finish_reason: str, stop_reason: str | int | None) -> list[Json]:
        """End what is open, once the choice has ended."""
        if finish_reason in ("length", "abort"):
            self._end["stop_reason"] = self._length_reason
        elif isinstance(stop_reason, str):
            self._end = {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        else:
            used = any(block["type"] == "tool_use" for block in self._blocks)
            self._end["stop_reason"] = "tool_use" if used else "end_turn"
        return self._close()

    def end(self, usage: Json, extras: Json) -> list[Json]:
        """End a stream."""
        delta = {"type": "message_delta", "delta": self._end, "usage": message_usage(usage)}
        return [delta | extras, {"type": "message_stop"}]

    def failure(self, error: ApiError) -> list[Json]:
        """End a stream that failed."""
        return [error.anthropic_body()]

    def reply(self, usage: Json, extras: Json) -> Json:
        """Make the whole reply, once it is finished."""
        return self._message(message_usage(usage)) | extras

    def _message(self, usage: Json) -> Json:
        return {
            "id": self._spec.reply_id,
            "type": "message",
            "role": "assistant",
            "model": self._spec.model,
            "content": list(self._blocks),
            **self._end,
            "usage": usage,
        }


def input_of(arguments: str) -> Json:
    """The input of a tool: what is there of arguments that were cut off, as clients join it."""
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def message_usage(usage: Json) -> Json:
    """A chat's usage in the words of this endpoint, which counts cached tokens apart."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
