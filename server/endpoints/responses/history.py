"""The conversation that a request continues: what is stored of it, and its own items."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from server.context import Context
from server.endpoints.responses.items_schema import HOSTED, MAX_ITEMS, InputItem, ItemPart
from server.endpoints.responses.schema import ResponsesRequest
from server.errors import ApiError, bad_request
from server.response_store.records import (
    IN_PROGRESS,
    BrokenChainError,
    GeneratedRun,
    Json,
    StoredConversation,
    StoreError,
)
from server.response_store.store import ResponseStore
from server.schema.base import shown

INLINE_ITEMS = 64
"""Stored items that are checked on the event loop."""
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
}


class History(NamedTuple):
    """A conversation up to the reply.

    Attributes:
        items: all of it, oldest first.
        num_past: so many of them are those of earlier responses.
        chain: keys of these responses, oldest first.
        runs: what the model generated in them, where that is known.
    """

    items: Sequence[InputItem]
    num_past: int
    chain: Sequence[int]
    runs: Sequence[GeneratedRun]

    @property
    def own(self) -> Sequence[InputItem]:
        """The items of the request itself."""
        return self.items[self.num_past :]


async def read_history(body: ResponsesRequest, owner: bytes, context: Context) -> History:
    """The conversation that a body goes on with; raises `ApiError`."""
    past = None
    if body.previous_response_id is not None:
        past = await _past(body.previous_response_id, owner, context)
    own = [
        await _referred(item, f"input[{i}]", owner, context)
        if item.type == "item_reference"
        else item
        for i, item in enumerate(body.input)
    ]
    if past is None:
        return History(own, 0, (), ())
    if len(past.items) + len(own) > MAX_ITEMS:
        raise bad_request(
            "input",
            f"input must leave the conversation at most {MAX_ITEMS} items: {len(past.items)} come "
            f"from previous_response_id, got {len(own)}",
        )
    if len(past.items) <= INLINE_ITEMS:
        items = _items(past.items)
    else:
        items = await context.worker.run(_items, past.items)
    return History([*items, *own], len(items), past.chain, past.runs)


def _items(stored: Sequence[Json]) -> list[InputItem]:
    return [InputItem.model_validate(item) for item in stored]


async def _past(response_id: str, owner: bytes, context: Context) -> StoredConversation:
    param = "previous_response_id"
    store = needed_store(context, param)
    try:
        found = await store.conversation(owner, response_id)
    except BrokenChainError:
        raise bad_request(
            param,
            f"{param}: a response before {shown(response_id)} was deleted or has expired, so its "
            "conversation cannot be continued",
            "previous_response_not_found",
        ) from None
    except StoreError as error:
        raise store_failed(error) from error
    if found is None:
        raise bad_request(
            param,
            f"{param}: there is no stored response {shown(response_id)}",
            "previous_response_not_found",
        )
    if found.status == IN_PROGRESS:
        raise bad_request(param, f"{param}: the response {shown(response_id)} is not finished")
    return found


async def _referred(item: InputItem, place: str, owner: bytes, context: Context) -> InputItem:
    """The stored item that a reference names."""
    store = needed_store(context, place)
    try:
        found = await store.item(owner, item.id or "")
    except StoreError as error:
        raise store_failed(error) from error
    if found is None:
        words = f"{place}.id: there is no stored item {shown(item.id)}"
        raise ApiError(404, words, param=f"{place}.id", code="item_not_found")
    return InputItem.model_validate(found)


def needed_store(context: Context, param: str | None) -> ResponseStore:
    """The store; raises a 400 where there is none."""
    if context.responses is None:
        name = "responses" if param is None else param
        words = f"{name}: this server keeps no responses (--response-store none)"
        raise bad_request(param, words, "responses_not_stored")
    return context.responses


def store_failed(error: StoreError) -> ApiError:
    """A 500 of a store that cannot be read or written."""
    return ApiError(500, f"the response store failed: {error}", code="response_store_failed")


def stored_items(items: Sequence[InputItem]) -> list[Json]:
    """Items as they are kept and listed, each with an id; those of hosted tools are left out."""
    return [_stored(item) for item in items if item.type not in HOSTED]


def _stored(item: InputItem) -> Json:
    fixed: Json = {
        "id": item.id or f"{_PREFIXES[item.type]}_{secrets.token_hex(16)}",
        "type": item.type,
        "status": item.status or "completed",
    }
    if item.type == "message":
        role = item.role or "user"
        return fixed | {"role": role, "content": [_part(part, role) for part in item.content or ()]}
    own = {
        name: value
        for name in ("call_id", "name", "arguments", "input", "action", "encrypted_content")
        if (value := getattr(item, name)) is not None
    }
    if item.output is not None:
        own["output"] = "\n".join(part.text or part.refusal or "" for part in item.output)
    if item.type == "reasoning":
        own["summary"] = [{"type": "summary_text", "text": p.text} for p in item.summary or ()]
        own["content"] = [{"type": "reasoning_text", "text": p.text} for p in item.content or ()]
    return fixed | own


def _part(part: ItemPart, role: str) -> Json:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    if role == "assistant":
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": part.text}
