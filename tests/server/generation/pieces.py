"""What the modules of generation pass to each other, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.arrays import Int32Array, LogprobArrays
from engine.contracts.control import FIRST_VERSION
from engine.messages.step_output import Finish, StepOutput
from engine.submission import Entry, entries_of
from sampling.params import SamplingParams
from server.engine_metrics import NO_STATS
from server.errors import ClientNames
from server.generation.choice import ReplyChoice
from server.generation.form import ReplyForm
from server.generation.spec import GenerationSpec
from server.text.stop import StopStrings
from tests.fakes import FakeEngine, byte_tokenizer
from tests.server.served import served_model

TOKENIZER = byte_tokenizer()
TOKENIZER.reserve(264)
SERVED = served_model(FakeEngine(), TOKENIZER)


def form(stops: Sequence[str] = (), **changes: Any) -> ReplyForm:
    """A form that wants the text alone, but for the changes."""
    neutral: dict[str, Any] = {"mode": "raw_logprobs", "silent_ends": frozenset({256})}
    return ReplyForm(**{**neutral, "stops": StopStrings(stops) if stops else None, **changes})


def spec(wanted: ReplyForm, **changes: Any) -> GenerationSpec:
    """A spec of one choice whose reply has this form, but for the changes."""
    neutral: dict[str, Any] = {
        "names": ClientNames(prompts="prompt"),
        "reply_id": "cmpl-x",
        "model": "m",
        "prompts": ["ab"],
        "params": SamplingParams(),
        "max_tokens": 16,
        "fits_context": False,
    }
    return GenerationSpec(**{**neutral, "form": wanted, **changes})


def reply_choice(wanted: ReplyForm) -> ReplyChoice:
    """A choice of bytes."""
    return ReplyChoice(0, 0, wanted, TOKENIZER.detokenizer(skip_special_tokens=True))


def values(count: int, num_top: int = 0, num_explicit: int = 0, first: int = 0) -> LogprobArrays:
    """Positions of which each holds its number, negative where it is a logprob."""
    at: Int32Array = np.arange(first, first + count, dtype=np.int32)
    return LogprobArrays(
        chosen=-at.astype(np.float32),
        ranks=at,
        top_ids=(at[:, None] + np.arange(num_top)).astype(np.int32),
        top_logprobs=np.tile(-at[:, None], num_top).astype(np.float32),
        explicit=np.tile(-at[:, None], num_explicit).astype(np.float32),
        kept=(-at / 2).astype(np.float32),
    )


def entry(
    tokens: bytes | Sequence[int],
    finish: Finish = Finish.RUNNING,
    logprobs: LogprobArrays | None = None,
    drafts: Sequence[int] | None = None,
    origins: Sequence[int] | None = None,
    version: str = FIRST_VERSION,
) -> Entry:
    """What a step reports of choice 0."""
    output = StepOutput(
        handles=np.array([1]),
        choices=np.array([0], dtype=np.int32),
        num_new=np.array([len(tokens)], dtype=np.int32),
        finish=np.array([finish], dtype=np.uint8),
        num_cached=np.array([0], dtype=np.int32),
        token_ids=np.array(list(tokens), dtype=np.int32),
        logprobs=logprobs,
        origins=None if origins is None else np.array(origins, dtype=np.uint8),
        drafts=None if drafts is None else np.array([drafts]),
        weight_version=version,
        stats=NO_STATS,
    )
    return entries_of(output)[0]
