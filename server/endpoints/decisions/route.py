"""`POST /v1/decisions`: questions about a text or a conversation, answered with probabilities."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.decisions.decide import decide
from server.endpoints.decisions.replies import answer_of, diagnostics_of
from server.endpoints.decisions.reply_schema import DecisionsReply
from server.endpoints.decisions.request import questions_of, reading_of, salt_of
from server.endpoints.decisions.schema import DecisionsRequest
from server.endpoints.decisions.state import state_of
from server.endpoints.plain import PlainRoute
from server.http.reply import json_reply
from server.schema.model_name import check_model
from server.schema.openapi import describes

router = APIRouter(tags=["decisions"], route_class=PlainRoute)


@router.post("/v1/decisions", **describes(DecisionsRequest, DecisionsReply))
async def decisions(request: Request) -> Response:
    """Give the probability of every answer that each question allows."""
    context = context_of(request)
    body = await context.bodies.read(request, DecisionsRequest)
    check_model(body.model, context.config, context.engine.state)
    questions = questions_of(body)
    decided = await decide(
        state_of(body.input),
        questions,
        reading_of(body, salt_of(body), context.config),
        prior=body.prior is not None,
        model=body.model,
        request_id=body.request_id,
        request=request,
        context=context,
    )
    answers = []
    for question, asked, answer in zip(questions, body.questions, decided.answers, strict=True):
        found = answer_of(question, asked.name, answer)
        if body.diagnostics:
            found["diagnostics"] = diagnostics_of(answer, context.tokenizer)
        answers.append(found)
    reply = {
        "id": decided.reply_id,
        "object": "decision",
        "created": decided.created,
        "model": body.model,
        "answers": answers,
        "usage": decided.usage,
        "wording": "plain" if decided.is_plain else "chat",
    }
    return json_reply(orjson.dumps(reply))
