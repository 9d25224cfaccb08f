"""`POST /v1/embeddings`: texts as vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Sized
from itertools import chain
from typing import NamedTuple

import numpy as np
import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.arrays import Float32Array, Int32Array
from server.context import Context, context_of
from server.endpoints.embeddings.schema import EmbeddingsReply, EmbeddingsRequest
from server.endpoints.plain import PlainRoute
from server.endpoints.run_scoring import run_scoring, side_by_side
from server.errors import bad_request, too_long
from server.http.account import GenerationReport, account_of, reply_id
from server.http.disconnect import CancelOnDisconnect
from server.http.reply import json_reply
from server.schema.ids import check_vocab
from server.schema.model_name import check_model
from server.schema.openapi import describes
from server.scoring.pooling import EmbeddingPrompts, pooled
from server.text.packed import base64_of
from server.text.tokenizer import INLINE_CHARS, TEXT_CHARS

router = APIRouter(tags=["embeddings"], route_class=PlainRoute)


@router.post("/v1/embeddings", **describes(EmbeddingsRequest, EmbeddingsReply))
async def embeddings(request: Request) -> Response:
    """Make a vector of each text."""
    context = context_of(request)
    body = await context.bodies.read(request, EmbeddingsRequest)
    check_model(body.model, context.config, context.engine.state)
    if (why := context.config.pooling.refusal) is not None:
        raise bad_request("model", f"the model has no embeddings here: {why}")
    token_ids = await _token_ids(body, context)
    total = _check(token_ids, context)
    name, account = reply_id("embd-", body.request_id, request.scope), account_of(request.scope)
    with CancelOnDisconnect(request.receive):
        found = await _vectors(token_ids, body, context)
    num_cached = sum(part.num_cached for part in found)
    account.report = lambda: GenerationReport(
        context.config.model_names[0], name, total, num_cached
    )
    rows = list(chain.from_iterable(part.rows for part in found))
    model = body.model or context.config.model_names[0]
    return json_reply(await context.worker.run(_reply, rows, model, total))


class _Vectors(NamedTuple):
    """The vectors of some texts, as the reply has them, and tokens that were found computed."""

    rows: list[str] | Float32Array
    num_cached: int


async def _vectors(
    token_ids: list[Int32Array], body: EmbeddingsRequest, context: Context
) -> list[_Vectors]:
    """The vectors of all texts, in order."""
    mode = context.config.pooling.mode
    parts = EmbeddingPrompts.of(token_ids, mode)
    if mode == "mean":  # the states of all tokens take memory
        return [await _vectors_of(part, body, context) for part in parts]
    return await side_by_side([_vectors_of(part, body, context) for part in parts])


async def _vectors_of(
    prompts: EmbeddingPrompts, body: EmbeddingsRequest, context: Context
) -> _Vectors:
    pooling, run = context.config.pooling, context.worker.run
    scores = await run_scoring(
        prompts.request, prompts.num_prompt_tokens, context, model=body.model
    )
    assert scores.hidden is not None
    width = pooling.layers[-1].weight.shape[0] if pooling.layers else scores.hidden.shape[1]
    if body.dimensions is not None and body.dimensions > width:
        raise bad_request(
            "dimensions", f"dimensions must be at most {width}, got {body.dimensions}"
        )
    states = await run(prompts.states, scores.hidden)
    vectors = await run(pooled, states, body.dimensions, pooling)
    as_base64 = body.encoding_format == "base64"
    return _Vectors(await run(_base64, vectors) if as_base64 else vectors, scores.num_cached)


async def _token_ids(body: EmbeddingsRequest, context: Context) -> list[Int32Array]:
    """The ids of every input; raises `ApiError` for a text that is too long for certain."""
    tokenizer, most = context.tokenizer, context.engine.info.max_model_len
    special = body.add_special_tokens is not False

    def ids(index: int, given: str | Int32Array) -> Int32Array:
        if not isinstance(given, str):
            return given
        if (at_least := tokenizer.min_tokens(given)) > most:
            raise too_long(_field(index, body.input), f"at least {at_least}", most)
        return np.array(tokenizer.encode(given, add_special_tokens=special), dtype=np.int32)

    def encode() -> list[Int32Array]:
        given: list[str | Int32Array] = [*body.input]
        return [ids(index, each) for index, each in enumerate(given)]

    size = sum(TEXT_CHARS + len(each) for each in body.input if isinstance(each, str))
    return encode() if size <= INLINE_CHARS else await asyncio.to_thread(encode)


def _check(token_ids: Sequence[Int32Array], context: Context) -> int:
    """Refuse what cannot be computed; returns the number of tokens."""
    info, most = context.engine.info, context.config.max_scoring_tokens
    for index, ids in enumerate(token_ids):
        field = _field(index, token_ids)
        check_vocab(field, ids, info.vocab_size)
        if not len(ids):
            raise bad_request(field, f"{field} has no tokens")
        if len(ids) > info.max_model_len:
            raise too_long(field, str(len(ids)), info.max_model_len)
    if (total := sum(map(len, token_ids))) > most:
        words = (
            f"input must have at most {most} tokens together (--max-scoring-tokens), got {total}"
        )
        raise bad_request("input", words, "too_many_tokens")
    return total


def _field(index: int, inputs: Sized) -> str:
    return f"input[{index}]" if len(inputs) > 1 else "input"


def _base64(vectors: Float32Array) -> list[str]:
    return [base64_of(row) for row in vectors]


def _reply(rows: Sequence[str | Float32Array], model: str, total: int) -> bytes:
    reply = {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(rows)
        ],
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)
