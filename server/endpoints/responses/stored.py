"""Stored responses: read, deleted, cancelled, and what they continue.

A response belongs to the API key that made it; for others it is not there.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.plain import PlainRoute
from server.endpoints.responses.history import needed_store, read_stored, store_failed
from server.endpoints.responses.items_schema import MAX_ID_CHARS
from server.endpoints.responses.reply_schema import DeletedResponse, InputItemList, ResponseReply
from server.errors import ApiError, bad_request, json_response
from server.http.account import account_of
from server.http.reply import json_reply
from server.response_store.records import (
    CANCELLED,
    IN_PROGRESS,
    BrokenChainError,
    Json,
    StoredReply,
    StoreError,
)
from server.response_store.store import ResponseStore
from server.schema.base import shown
from server.schema.openapi import path_parameter, replies

router = APIRouter(tags=["responses"], route_class=PlainRoute)

CANCEL_S = 10.0
"""How long a cancelled response may take to end."""
_LOOK_S = 0.02
_MAX_LIMIT, _LIMIT = 100, 20
_PATH = "/v1/responses/{response_id}"
_PARAMETER = {"parameters": [path_parameter("response_id", "The id of a stored response.")]}


@router.get(_PATH, responses=replies(ResponseReply, 400, 404, 500), openapi_extra=_PARAMETER)
async def retrieve_response(request: Request) -> Response:
    """The response as it is: also while it runs."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise bad_request("stream", "stream must be false: a stored response is read whole")
    store, owner, response_id = _asked(request)
    return json_reply((await _found(store, owner, response_id)).raw)


@router.delete(_PATH, responses=replies(DeletedResponse, 404, 500), openapi_extra=_PARAMETER)
async def delete_response(request: Request) -> Response:
    """Delete a response with its input and output; what continued it cannot be continued."""
    store, owner, response_id = _asked(request)
    try:
        was_there = await store.delete(owner, response_id)
    except StoreError as error:
        raise store_failed(error) from error
    if not was_there:
        raise _missing(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post(
    f"{_PATH}/cancel", responses=replies(ResponseReply, 400, 404, 500), openapi_extra=_PARAMETER
)
async def cancel_response(request: Request) -> Response:
    """End a response that runs; what has been generated of it is kept."""
    store, owner, response_id = _asked(request)
    found = await _found(store, owner, response_id)
    if found.status not in (IN_PROGRESS, CANCELLED):
        # The first words of a response whose client waited for it are OpenAI's.
        in_background = orjson.loads(found.raw)["background"]
        kind = "a response" if in_background else "a synchronous response"
        words = f"Cannot cancel {kind}. {shown(response_id)} is {found.status}"
        raise bad_request("response_id", words, "response_not_running")
    try:
        if found.status == IN_PROGRESS:
            await store.cancel(found.key)
        async with asyncio.timeout(CANCEL_S):
            while found.status == IN_PROGRESS:
                await asyncio.sleep(_LOOK_S)
                found = await _found(store, owner, response_id)
    except StoreError as error:
        raise store_failed(error) from error
    except TimeoutError:
        raise ApiError(500, f"the response did not end within {CANCEL_S:g} s") from None
    return json_reply(found.raw)


@router.get(
    f"{_PATH}/input_items",
    responses=replies(InputItemList, 400, 404, 500),
    openapi_extra=_PARAMETER,
)
async def list_input_items(request: Request) -> Response:
    """The items that a response replied to, those of earlier responses among them."""
    context = context_of(request)
    store, owner, response_id = _asked(request)
    read = partial(store.input_items, owner, response_id)
    try:
        items = await read_stored(read, "response_id", request.scope, context, sys.maxsize)
    except BrokenChainError:
        words = f"a response before {shown(response_id)} was deleted or has expired"
        raise ApiError(
            404, words, param="response_id", code="previous_response_not_found"
        ) from None
    if items is None:
        raise _missing(response_id)
    return json_response(_page(items, request))


def _page(items: list[Json], request: Request) -> Json:
    """Some of the items, as the query asks: the newest first unless `order` is asc."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("order", f"order must be asc or desc, got {shown(order)}")
    limit = _limit(query.get("limit"))
    if order == "desc":
        items = items[::-1]
    after: Any = query.get("after")
    if after is not None:
        places = [i for i, item in enumerate(items) if item["id"] == after]
        if not places:
            raise bad_request("after", f"after must be the id of an item, got {shown(after)}")
        items = items[places[0] + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }


def _limit(given: str | None) -> int:
    if given is None:
        return _LIMIT
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= _MAX_LIMIT:
        raise bad_request("limit", f"limit must be between 1 and {_MAX_LIMIT}, got {shown(given)}")
    return int(given)


def _asked(request: Request) -> tuple[ResponseStore, bytes, str]:
    response_id: str = request.path_params["response_id"]
    store = needed_store(context_of(request), None)
    if len(response_id) > MAX_ID_CHARS:
        raise _missing(response_id)
    return store, account_of(request.scope).owner, response_id


async def _found(store: ResponseStore, owner: bytes, response_id: str) -> StoredReply:
    try:
        found = await store.get(owner, response_id)
    except StoreError as error:
        raise store_failed(error) from error
    if found is None:
        raise _missing(response_id)
    return found


def _missing(response_id: str) -> ApiError:
    words = f"Response with id {shown(response_id)} not found."  # OpenAI's words
    return ApiError(404, words, param="response_id", code="response_not_found")
