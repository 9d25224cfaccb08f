"""Questions about a state asked and answered, for both endpoints."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from starlette.requests import Request

from engine.messages.step_output import ItemScores
from server.context import Context
from server.endpoints.decisions.answers import Answer, answers
from server.endpoints.decisions.question import Question, Reading, State, emptied
from server.endpoints.decisions.replies import Json, usage_of
from server.endpoints.decisions.spec import DecisionPrompts, DecisionReader
from server.endpoints.decisions.thoughts import Thoughts, think
from server.endpoints.decisions.wording import WORDING, Wording
from server.endpoints.run_scoring import run_scoring, side_by_side
from server.http.account import DecisionCounts, GenerationReport, account_of
from server.http.disconnect import CancelOnDisconnect
from server.schema.model_name import adapter_digest
from server.scoring.frames import ReplyFrame
from server.text.shared_prefix import PrefixedTexts
from server.text.tokenizer import INLINE_CHARS, TEXT_CHARS

_wording = lru_cache(4)(Wording)

INLINE_SIZE = 6 * INLINE_CHARS
"""Prompts of a smaller size are made on the event loop, in some milliseconds. What comes of a
thread is seen only when the bodies of all requests that came meanwhile are read, and an engine that
has nothing to do waits for the first of them."""
_OPTION_CHARS = 48
"""An option takes as long to word, to name and to tokenize as so many characters of a state."""


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
    # An adapter's name may stand for another after each await.
    digest = adapter_digest(model, config, context.engine.state)
    reply_id = f"decision-{request_id or account.request_id or secrets.token_hex(16)}"
    wording = _wording(config.decision_template or WORDING)
    reader = DecisionReader(context.readers, wording, context.info, config.max_scoring_tokens)
    state, frame = await reader.framed(state, questions, reading)
    began = time.perf_counter()
    with CancelOnDisconnect(request.receive):
        states = [state, emptied(state)] if prior else [state]
        served = model or config.model_names[0]
        thinks = partial(
            think,
            place=state.place,
            model=served,
            digest=digest,
            reply_id=reply_id,
            context=context,
        )
        prompts, thoughts = await _prompts(states, frame, questions, reading, reader, thinks)
        of_prompts = sum(each.num_prompt_tokens for each in prompts)
        num_read = of_prompts if thoughts is None else thoughts.num_prompt_tokens
        num_thought = 0 if thoughts is None else thoughts.num_tokens
        report = partial(
            GenerationReport, config.model_names[0], reply_id, num_read, num_generated=num_thought
        )
        account.report = partial(report, num_cached=0)
        asks_once = thoughts is None and not prior
        scores = await _scores(prompts, model, "" if asks_once else digest, context)
    of_scores = sum(each.num_cached for each in scores)
    num_cached = of_scores if thoughts is None else thoughts.num_cached
    pairs = list(zip(prompts, scores, strict=True))
    found = answers(len(questions), *pairs[0], prior=pairs[1] if prior else None)
    counts = _count(questions, found, num_cached, context)
    account.report = partial(report, num_cached=num_cached, decisions=counts)
    num_written = _num_full(prompts, context) - num_cached
    return Decided(
        reply_id=reply_id,
        created=int(time.time()),
        answers=found,
        is_plain=frame.is_plain,
        usage=usage_of(num_read, num_cached, num_written, num_thought),
        seconds=time.perf_counter() - began,
    )


async def _prompts(
    states: Sequence[State],
    frame: ReplyFrame,
    questions: Sequence[Question],
    reading: Reading,
    reader: DecisionReader,
    thinks: Callable[[PrefixedTexts, str, Reading], Awaitable[Thoughts]],
) -> tuple[list[DecisionPrompts], Thoughts | None]:
    """The prompts of the questions about each state, after the model's thoughts where it thinks."""
    is_long = _size(states[0], questions, reading) > INLINE_SIZE
    run: Any = asyncio.to_thread if is_long else _at_once
    prompts, thoughts = [], None
    for state in states:
        asked = await run(reader.asked, state, frame, questions, reading)
        if frame.thought is not None:
            openings = await run(reader.openings, asked, frame)
            thoughts = await thinks(openings, frame.thought.marker, reading)
            pairs = zip(asked, thoughts.texts, strict=True)
            asked = [each.after(thought) for each, thought in pairs]
        prompts.append(await run(reader.prompts, asked, state, frame, questions, reading))
    return prompts, thoughts


def _size(state: State, questions: Sequence[Question], reading: Reading) -> int:
    """So many characters of a state take about as long to tokenize as prompts take to make."""
    asked = sum(
        len(each.instructions) + _OPTION_CHARS * len(each.options) + TEXT_CHARS
        for each in questions
    )
    return len(state.text) + asked * reading.num_orders


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    """What `asyncio.to_thread` does, here and now."""
    return function(*args)


async def _scores(
    prompts: Sequence[DecisionPrompts], model: str | None, digest: str, context: Context
) -> list[ItemScores]:
    ask = partial(run_scoring, context=context, model=model, adapter_digest=digest)
    runs = [ask(each.spec.request, each.num_prompt_tokens) for each in prompts]
    return await side_by_side(runs)


def _num_full(prompts: Sequence[DecisionPrompts], context: Context) -> int:
    """Tokens of full blocks, which can be found from now on."""
    size = context.info.block_size
    return sum(len(each.spec.query) // size * size for each in prompts)


def _count(
    questions: Sequence[Question], found: Sequence[Answer], num_cached: int, context: Context
) -> DecisionCounts:
    """Count answers in the metrics; returns the counts of these alone."""
    metrics = context.metrics
    kinds = [question.kind for question in questions]
    for kind in set(kinds):
        metrics.decisions[kind].inc(kinds.count(kind))
    num_labels = sum(answer.by_order.size for answer in found)
    metrics.decision_labels.inc(num_labels)
    for answer in found:
        metrics.decision_label_mass.observe(answer.label_mass)
    metrics.decision_cached_tokens.inc(num_cached)
    return DecisionCounts(
        num_questions=len(found),
        num_labels=num_labels,
        lowest_label_mass=min(answer.label_mass for answer in found),
    )
