"""The response around its output: as a whole, and as the first and last events of a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from server.conversation.parsing.output import Event
from server.endpoints.responses.output import COMPLETED, INCOMPLETE, OutputItems
from server.endpoints.responses.schema import ENCRYPTED, ResponsesRequest
from server.endpoints.responses.tools_schema import CustomTool, FunctionTool, SearchTool
from server.errors import CLIENT_GONE, ApiError
from server.generation.prepare import PreparedRequest
from server.response_store.records import CANCELLED, FAILED, IN_PROGRESS, QUEUED

Json = dict[str, Any]


class ResponseShape:
    """Writes one response.

    Args:
        id_chars: the length of calls' ids; None for the usual.

    Attributes:
        is_stored: the response is kept.
    """

    def __init__(
        self, body: ResponsesRequest, prepared: PreparedRequest, id_chars: int | None
    ) -> None:
        self.is_stored = False
        self._head = response_head(body, prepared)
        self._fingerprint = prepared.fingerprint
        self._items = OutputItems(
            custom={tool.name for tool in body.tools or () if isinstance(tool, CustomTool)},
            as_summary=bool(body.reasoning and body.reasoning.summary),
            encrypts=ENCRYPTED in (body.include or ()),
            has_logprobs=prepared.spec.form.num_top is not None,
            id_chars=id_chars,
        )
        self._is_incomplete = False
        self._completed_at: int | None = None
        self._last_events: list[Json] | None = None
        self._num_events = 0

    @property
    def id(self) -> str:
        """The response's id."""
        response_id: str = self._head["id"]
        return response_id

    def queued(self) -> Json:
        """The response as it is before the engine has begun it."""
        return self._response(QUEUED)

    def running(self) -> Json:
        """The response as it is while it runs."""
        return self._response(IN_PROGRESS)

    def begin(self, usage: Json) -> list[Json]:
        """Begin a stream."""
        response = self.running()
        kinds = ("response.created", "response.in_progress")
        return self._numbered([{"type": kind, "response": response} for kind in kinds])

    def add(self, events: Sequence[Event], entries: list[Json]) -> list[Json]:
        """Add what the choice says next, and logprobs of tokens of its content."""
        return self._numbered(self._items.add(events, entries))

    def finish(self, finish_reason: str, stop_reason: str | int | None) -> list[Json]:
        """End what is open, once the choice has ended."""
        self._is_incomplete = finish_reason in ("length", "abort")
        self._completed_at = None if self._is_incomplete else int(time.time())
        return self._numbered(self._items.finish(self._status))

    def end(self, usage: Json, extras: Json) -> list[Json]:
        """End a stream."""
        response = self.reply(usage, extras)
        return self._numbered([{"type": f"response.{self._status}", "response": response}])

    def break_off(self, error: ApiError) -> None:
        """End what is open, where an error ends the response."""
        self._last_events = self._items.finish(INCOMPLETE)

    def broken(self, error: ApiError) -> Json:
        """The whole response that an error ended."""
        if error.status == CLIENT_GONE:
            return self._response(CANCELLED)
        response = self._response(FAILED)
        response["error"] = {"code": _error_code(error.status), "message": error.message}
        return response

    def failure(self, error: ApiError) -> list[Json]:
        """End a stream that failed, or was cancelled."""
        if self._last_events is None:
            self.break_off(error)
        events, response = self._last_events or [], self.broken(error)
        kind = "failed" if response["status"] == FAILED else "incomplete"
        return self._numbered([*events, {"type": f"response.{kind}", "response": response}])

    def reply(self, usage: Json, extras: Json) -> Json:
        """Make the whole reply, once it is finished."""
        response = self._response(self._status) | {"usage": response_usage(usage)} | extras
        response["completed_at"] = self._completed_at
        if self._is_incomplete:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response

    @property
    def _status(self) -> str:
        return INCOMPLETE if self._is_incomplete else COMPLETED

    def _response(self, status: str) -> Json:
        own = {"status": status, "store": self.is_stored, "output": list(self._items.items)}
        return self._head | own | {"system_fingerprint": str(self._fingerprint)}

    def _numbered(self, events: list[Json]) -> list[Json]:
        for event in events:
            event["sequence_number"] = self._num_events
            self._num_events += 1
        return events


def response_head(body: ResponsesRequest, prepared: PreparedRequest) -> Json:
    """The fields of a response that are known from its request, in OpenAI's order."""
    params = prepared.spec.params
    reasoning = body.reasoning
    return {
        "id": prepared.spec.reply_id,
        "object": "response",
        "created_at": prepared.created,
        "status": IN_PROGRESS,
        "background": bool(body.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": prepared.spec.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": reasoning and reasoning.effort,
            "summary": reasoning and reasoning.summary,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": body.service_tier or "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": _format(body)},
        "tool_choice": _choice(body),
        "tools": [_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
        "system_fingerprint": str(prepared.fingerprint),
    }


def _format(body: ResponsesRequest) -> Json:
    wanted = body.text.format if body.text else None
    if wanted is None:
        return {"type": "text"}
    return wanted.model_dump(by_alias=True, exclude_none=True)


def _choice(body: ResponsesRequest) -> str | Json:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.model_dump()


def _tool(tool: FunctionTool | CustomTool | SearchTool) -> Json:
    said = tool.model_dump(exclude_none=True)
    if not isinstance(tool, FunctionTool):
        return said
    return {"description": None, "parameters": None, "strict": None} | said


def response_usage(usage: Json) -> Json:
    """A chat's usage in the words of this endpoint."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage["total_tokens"],
    }


def _error_code(status: int) -> str:
    if status == 429:
        return "rate_limit_exceeded"
    return "server_error" if status >= 500 else "invalid_prompt"
