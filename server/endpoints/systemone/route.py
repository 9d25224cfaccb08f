"""`POST /v1/systemone` and its variants: questions as TypeSafe's clients ask them."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.context import Context, context_of
from server.endpoints.decisions.decide import Decided, decide
from server.endpoints.decisions.question import Question
from server.endpoints.decisions.replies import diagnostics_of
from server.endpoints.decisions.request import reading_of
from server.endpoints.plain import PlainRoute
from server.endpoints.systemone.questions import questions_of, state_of
from server.endpoints.systemone.replies import Json, answer_of, runs_of, short_diagnostics
from server.endpoints.systemone.reply_schema import DetailReply, PermuteReply, SystemOneReply
from server.endpoints.systemone.schema import PermuteRequest, SeparateRequest, SystemOneRequest
from server.errors import bad_request
from server.http.reply import json_reply
from server.schema.base import BodyModel, shown
from server.schema.model_name import check_model
from server.schema.openapi import describes

router = APIRouter(tags=["decisions"], route_class=PlainRoute)


def _describes(kind: type[BodyModel], success: type[BaseModel]) -> Json:
    return describes(kind, success, error=DetailReply, refused=422)


@router.post("/v1/systemone", **_describes(SystemOneRequest, SystemOneReply))
async def systemone(request: Request) -> Response:
    """Give the probability of every answer that each question allows, by name."""
    context = context_of(request)
    body = await context.bodies.read(request, SystemOneRequest)
    return await _answer(body, request, context)


@router.post("/v1/systemone/separate", **_describes(SeparateRequest, SystemOneReply))
async def separate(request: Request) -> Response:
    """Read each question apart, which `/v1/systemone` does too."""
    context = context_of(request)
    body = await context.bodies.read(request, SeparateRequest)
    return await _answer(body.request, request, context)


@router.post("/v1/systemone/permute", **_describes(PermuteRequest, PermuteReply))
async def permute(request: Request) -> Response:
    """Read one question with its options in several orders."""
    context = context_of(request)
    body = await context.bodies.read(request, PermuteRequest)
    if body.question not in body.request.questions:
        names = ", ".join(list(body.request.questions)[:8])
        words = f"question must be one of the request's ({names}), got {shown(body.question)}"
        raise bad_request("question", words)
    asked = body.request.questions[body.question]
    own = body.request.model_copy(
        update={
            "questions": {body.question: asked},
            "permute": body.n_perm,
            "seed": body.seed,
        }
    )
    (question,), decided = await _decided(own, request, context)
    (answer,) = decided.answers
    reply = {
        "runs": runs_of(question, answer, decided.seconds),
        "argmax_stable": answer.argmax_is_stable,
        "spread": answer.spread,
    }
    return json_reply(orjson.dumps(reply))


async def _decided(
    body: SystemOneRequest, request: Request, context: Context
) -> tuple[list[Question], Decided]:
    check_model(body.model, context.config, context.engine.state)
    questions = questions_of(body)
    decided = await decide(
        state_of(body),
        questions,
        reading_of(body, body.cache_salt or "", context.config),
        prior=body.prior is not None,
        model=body.model,
        request_id=body.request_id,
        request=request,
        context=context,
    )
    return questions, decided


async def _answer(body: SystemOneRequest, request: Request, context: Context) -> Response:
    questions, decided = await _decided(body, request, context)
    names = list(body.questions)
    pairs = list(zip(questions, decided.answers, strict=True))
    diagnostics = short_diagnostics(names, decided.answers)
    if body.diagnostics:
        whole = [diagnostics_of(answer, context.tokenizer) for answer in decided.answers]
        diagnostics = dict(zip(names, whole, strict=True))
    reply = {
        "id": decided.reply_id,
        "object": "structured_decision",
        "created": decided.created,
        "model": body.model,
        "answers": dict(zip(names, [answer_of(*pair) for pair in pairs], strict=True)),
        "diagnostics": diagnostics,
        "usage": decided.usage,
        "wording": "plain" if decided.is_plain else "chat",
    }
    return json_reply(orjson.dumps(reply))
