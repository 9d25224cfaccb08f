"""Responses to be stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from server.response_store.database import ResponseDatabase
from server.response_store.records import GeneratedRun, NewResponse

OWNER, OTHER = b"o" * 32, b"x" * 32


def new(
    response_id: str = "resp_1",
    chain: Sequence[int] = (),
    text: str = "hello",
    owner: bytes = OWNER,
) -> NewResponse:
    return NewResponse(
        id=response_id,
        owner=owner,
        chain=chain,
        reply={"id": response_id, "status": "in_progress", "output": []},
        items=[message(f"msg_of_{response_id}", text)],
    )


def message(item_id: str, text: str) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "text": text}


def run(start: int = 3, *token_ids: int) -> GeneratedRun:
    return GeneratedRun(start, np.array(token_ids or (1, 2), dtype=np.int32))


def put(
    database: ResponseDatabase,
    response_id: str = "resp_1",
    chain: Sequence[int] = (),
    text: str = "hello",
    owner: bytes = OWNER,
) -> int:
    """Store a response that has ended; returns its key."""
    key = database.begin(new(response_id, chain, text, owner))
    output = [message(f"out_of_{response_id}", f"re: {text}")]
    reply = {"id": response_id, "status": "completed", "output": output}
    database.finish(key, "completed", reply, output, run())
    return key
