"""`POST /generative_scoring`, `POST /v1/score`: how likely labels are after a query and items."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.messages.step_output import ItemScores
from server.context import context_of
from server.endpoints.plain import PlainRoute
from server.endpoints.ranking import rank
from server.endpoints.run_scoring import run_scoring
from server.endpoints.scoring.prepare import PreparedScoring, prepare_scoring
from server.endpoints.scoring.replies import (
    generative_scoring_reply,
    pair_scores_reply,
    score_reply,
)
from server.endpoints.scoring.schema import (
    PAIRED,
    GenerativeScoringReply,
    GenerativeScoringRequest,
    ScoreReply,
    ScoreRequest,
    ScoringFields,
)
from server.http.account import GenerationReport, account_of, reply_id
from server.http.disconnect import CancelOnDisconnect
from server.http.reply import json_reply
from server.schema.model_name import check_model
from server.schema.openapi import describes
from server.scoring.rerankers import Pair, relevance

router = APIRouter(tags=["scoring"], route_class=PlainRoute)

INLINE_VALUES = 1 << 12
"""Replies of up to so many values are written on the event loop, in 2 ms at most: the body took
longer to parse there, and a thread would begin late and wait for Python's lock besides."""


@router.post("/generative_scoring", **describes(GenerativeScoringRequest, GenerativeScoringReply))
async def generative_scoring(request: Request) -> Response:
    """Give the probability of the first label after each item, and every label's logprob."""
    body = await context_of(request).bodies.read(request, GenerativeScoringRequest)
    return await _answer(request, body, "generative-scoring", True, generative_scoring_reply)


@router.post("/v1/score", **describes(ScoreRequest, ScoreReply))
async def score(request: Request) -> Response:
    """Give the probability of every label after each item."""
    body = await context_of(request).bodies.read(request, ScoreRequest)
    if body.is_paired:
        return await _score_pairs(request, body)
    return await _answer(request, body, "score", False, score_reply)


async def _score_pairs(request: Request, body: ScoreRequest) -> Response:
    """Answer a request of pairs as vLLM's clients read it."""
    context = context_of(request)
    check_model(body.model, context.config, context.engine.state)
    first, second = body.sides
    queries = first * len(second) if len(first) == 1 else first
    name = reply_id("score-", body.request_id, request.scope)
    raw, usage = await rank(
        [Pair(*sides) for sides in zip(queries, second, strict=True)],
        body.instruction,
        field=next(second for _, second in PAIRED if getattr(body, second) is not None),
        reply_id=name,
        model=body.model,
        request=request,
        context=context,
    )
    scores = raw if body.use_activation is False else relevance(raw)
    model = body.model or context.config.model_names[0]
    return json_reply(orjson.dumps(pair_scores_reply(scores, name, model, usage)))


async def _answer(
    request: Request,
    body: ScoringFields,
    kind: str,
    softmax: bool,
    write: Callable[[PreparedScoring, ItemScores], bytes],
) -> Response:
    context = context_of(request)
    name = reply_id(f"{kind}-", body.request_id, request.scope)
    prepared = await prepare_scoring(body, context, name, softmax=softmax)
    account = account_of(request.scope)
    account.report = partial(_report, prepared)
    with CancelOnDisconnect(request.receive):
        scores = await run_scoring(
            prepared.spec.request, prepared.num_prompt_tokens, context, model=prepared.model
        )
        account.report = partial(_report, prepared, scores)
        if scores.values.size > INLINE_VALUES:
            return json_reply(await context.worker.run(write, prepared, scores))
        return json_reply(write(prepared, scores))


def _report(prepared: PreparedScoring, scores: ItemScores | None = None) -> GenerationReport:
    return GenerationReport(
        model=prepared.model,
        reply_id=prepared.reply_id,
        num_prompt_tokens=prepared.num_prompt_tokens,
        num_cached=0 if scores is None else scores.num_cached,
    )
