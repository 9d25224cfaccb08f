"""The conversation that a request continues: what is stored of it, and its own items."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from starlette.types import Scope

from server.context import Context
from server.endpoints.responses.items_schema import HOSTED, MAX_ITEMS, InputItem, ItemPart
from server.endpoints.responses.schema import ResponsesRequest
from server.errors import ApiError, bad_request
from server.http.account import account_of
from server.http.body import INLINE_BYTES
from server.response_store.records import (
    IN_PROGRESS,
    BrokenChainError,
    GeneratedRun,
    Json,
    StoredConversation,
    StoreError,
    TooLargeError,
)
from server.response_store.store import ResponseStore
from server.schema.base import shown

T = TypeVar("T")

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


async def read_history(body: ResponsesRequest, scope: Scope, context: Context) -> History:
    """The conversation that a body goes on with; raises `ApiError`.

    What is stored of it may take as many bytes as a body.
    """
    past = None
    if body.previous_response_id is not None:
        past = await _past(body.previous_response_id, scope, context)
    own = await _with_referred(body.input, scope, context)
    if past is None:
        return History(own, 0, (), ())
    if len(past.items) + len(own) > MAX_ITEMS:
        raise bad_request(
            "input",
            f"input must leave the conversation at most {MAX_ITEMS} items: {len(past.items)} come "
            f"from previous_response_id, got {len(own)}",
        )
    items = await _checked(past.items, context)
    return History([*items, *own], len(items), past.chain, past.runs)


async def _checked(stored: Sequence[Json], context: Context) -> list[InputItem]:
    def check() -> list[InputItem]:
        return [InputItem.model_validate(item) for item in stored]

    return check() if len(stored) <= INLINE_ITEMS else await context.worker.run(check)


async def read_stored(
    read: Callable[[int], Awaitable[T]], param: str, scope: Scope, context: Context, most: int
) -> T:
    """What `read` finds, where it takes no more bytes than its argument; raises `ApiError`.

    Args:
        most: bytes that may be read; the memory of many is waited for.
    """
    try:
        try:
            return await read(min(most, INLINE_BYTES))
        except TooLargeError as large:
            if large.num_bytes <= most:
                await context.bodies.reserve(scope, large.num_bytes)
                return await read(most)
            raise
    except TooLargeError as large:
        words = (
            f"{param}: the stored items have {large.num_bytes} bytes, more than a body may "
            f"(--max-body-bytes {most})"
        )
        raise bad_request(param, words, "conversation_too_large") from None
    except StoreError as error:
        raise store_failed(error) from error


async def _past(response_id: str, scope: Scope, context: Context) -> StoredConversation:
    param = "previous_response_id"
    store, owner = needed_store(context, param), account_of(scope).owner
    most = context.config.max_body_bytes
    try:
        found = await read_stored(
            partial(store.conversation, owner, response_id), param, scope, context, most
        )
    except BrokenChainError:
        raise bad_request(
            param,
            f"{param}: a response before {shown(response_id)} was deleted or has expired, so its "
            "conversation cannot be continued",
            "previous_response_not_found",
        ) from None
    if found is None:
        raise bad_request(
            param,
            f"{param}: there is no stored response {shown(response_id)}",
            "previous_response_not_found",
        )
    if found.status == IN_PROGRESS:
        raise bad_request(param, f"{param}: the response {shown(response_id)} is not finished")
    return found


async def _with_referred(
    items: Sequence[InputItem], scope: Scope, context: Context
) -> list[InputItem]:
    """The items of a request, stored ones in the place of references to them."""
    places = [i for i, item in enumerate(items) if item.type == "item_reference"]
    if not places:
        return list(items)
    store, owner = needed_store(context, f"input[{places[0]}]"), account_of(scope).owner
    ids = [items[i].id or "" for i in places]
    most = context.config.max_body_bytes
    stored = await read_stored(partial(store.items, owner, ids), "input", scope, context, most)
    found = [item for item in stored if item is not None]
    if len(found) < len(places):
        i = places[stored.index(None)]
        words = f"input[{i}].id: there is no stored item {shown(items[i].id)}"
        raise ApiError(404, words, param=f"input[{i}].id", code="item_not_found")
    whole = list(items)
    for i, item in zip(places, await _checked(found, context), strict=True):
        whole[i] = item
    return whole


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
