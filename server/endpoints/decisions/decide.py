"""Questions about a state asked and answered, for both endpoints."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from starlette.requests import Request

from engine.request import ItemScores
from server.context import Context
from server.endpoints.decisions.answers import Answer, answers
from server.endpoints.decisions.prompts import (
    DecisionPrompts,
    DecisionReader,
    Reading,
    State,
    emptied,
)
from server.endpoints.decisions.question import Question
from server.endpoints.decisions.replies import Json, usage_of
from server.endpoints.decisions.wording import WORDING, Wording
from server.endpoints.scored import run_scoring
from server.http.account import DecisionCounts, GenerationReport, account_of
from server.http.disconnect import CancelOnDisconnect
from server.text.tokenizer import INLINE_CHARS

_wording = lru_cache(4)(Wording)


@dataclass(frozen=True, slots=True)
class Decided:
    """The answers to a request's questions.

    Attributes:
        reply_id: names the reply.
        is_plain: the model has no chat template, so the questions were put as plain text.
        usage: the tokens, as OpenAI's clients read them.
        seconds: how long reading took.
    """

    reply_id: str
    created: int
    answers: list[Answer]
    is_plain: bool
    usage: Json
    seconds: float


async def decide(
    state: State,
    questions: Sequence[Question],
    reading: Reading,
    *,
    prior: bool,
    model: str | None,
    request_id: str | None,
    request: Request,
    context: Context,
) -> Decided:
    """Ask every question about the state; raises `ApiError`.

    Args:
        prior: ask them without a state too, and divide by what that gives.
        model: the checked name of the model or adapter that is asked.
        request_id: the end of the reply's id.
    """
    config, account = context.config, account_of(request.scope)
    reply_id = f"decision-{request_id or account.request_id or secrets.token_hex(16)}"
    source = config.decision_template or WORDING
    reader = DecisionReader(
        context.readers, _wording(source), context.info, config.max_scoring_tokens
    )
    state, frame = await reader.framed(state, questions, reading)
    asked = [state, emptied(state)] if prior else [state]
    size = len(state.text) + sum(len(q.instructions) + 32 * len(q.options) for q in questions)
    prompts = []
    for each in asked:
        make = partial(reader.prompts, each, frame, questions, reading)
        is_long = size * reading.num_orders > INLINE_CHARS
        prompts.append(await asyncio.to_thread(make) if is_long else make())
    total = sum(each.num_prompt_tokens for each in prompts)
    report = partial(GenerationReport, context.config.model_names[0], reply_id, total)
    account.report = partial(report, 0)
    began = time.perf_counter()
    with CancelOnDisconnect(request.receive):
        scores = await _scores(prompts, model, context)
    num_cached = sum(each.num_cached for each in scores)
    pairs = list(zip(prompts, scores, strict=True))
    found = answers(len(questions), *pairs[0], prior=pairs[1] if prior else None)
    counts = _count(questions, found, num_cached, context)
    account.report = partial(report, num_cached, decisions=counts)
    return Decided(
        reply_id=reply_id,
        created=int(time.time()),
        answers=found,
        is_plain=frame.is_plain,
        usage=usage_of(total, num_cached, _num_written(pairs, context)),
        seconds=time.perf_counter() - began,
    )


async def _scores(
    prompts: Sequence[DecisionPrompts], model: str | None, context: Context
) -> list[ItemScores]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    run_scoring(each.spec.request, each.num_prompt_tokens, context, model=model)
                )
                for each in prompts
            ]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


def _num_written(pairs: Sequence[tuple[DecisionPrompts, ItemScores]], context: Context) -> int:
    """Tokens of full blocks that were computed and can be found from now on."""
    size = context.info.block_size
    return sum(
        len(prompts.spec.query) // size * size - scores.num_cached for prompts, scores in pairs
    )


def _count(
    questions: Sequence[Question], found: Sequence[Answer], num_cached: int, context: Context
) -> DecisionCounts:
    """Count answers in the metrics; returns the counts of these alone."""
    metrics = context.metrics
    for question, answer in zip(questions, found, strict=True):
        metrics.decisions[question.kind].inc()
        metrics.decision_labels.inc(answer.by_order.size)
        metrics.decision_label_mass.observe(answer.label_mass)
    metrics.decision_cached_tokens.inc(num_cached)
    return DecisionCounts(
        num_questions=len(found),
        num_labels=sum(answer.by_order.size for answer in found),
        lowest_label_mass=min(answer.label_mass for answer in found),
    )
