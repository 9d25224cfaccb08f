"""Serves a few requests of its own before the process is ready, so that no client's is the first.

Some of a process's work is done once: modules are imported when they are first needed, CUDA graphs
uploaded when they are first replayed, pinned memory and the allocator's blocks taken, kernels of
libraries loaded. Whoever comes first would wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from engine.config import EngineConfig
from engine.contracts.info import EngineInfo
from engine.contracts.runner import StartingRunner
from engine.engine import Engine
from engine.errors import ModelError
from engine.messages.codec import decode_message, encode
from engine.messages.request import FrontendMessage, Request
from engine.planning.drafting import DraftRules
from engine.progress import phase
from sampling.params import SamplingParams

PROMPT_LENS = (16, 128, 48, 96, 200)
"""Tokens of the prompts: steps of other sizes run other kernels and graphs. A short one comes
first, after which a large model on a CPU has used up its time, and then a usual one."""
NUM_TOKENS = 4
"""Tokens of each reply: a prefill, and steps that decode after one another."""
LIMIT_S = 0.15
"""Seconds after which no further request is begun."""


def rehearse(
    config: EngineConfig, info: EngineInfo, runner: StartingRunner, drafting: DraftRules
) -> None:
    """Serve requests as the process will, one after the other, and leave no trace of them.

    They go through an engine of their own around `runner`, which keeps the books of them. After it
    all rows are vacant and none counts as drawn; only what they wrote stays in the cache's blocks,
    all of which are free for the engine to come. A step that raises ends its request alone.

    Raises:
        ModelError: no request was served, so none of a client's would be.
        RunnerLostError: the runner cannot go on.
    """
    errors, num_served = [], 0
    with phase("rehearsing"):
        engine = Engine(config, info, runner, drafting)
        began = time.monotonic()
        for request in _requests(info):
            error = _serve(engine, request)
            num_served += error is None
            errors += [] if error is None else [error]
            if num_served and time.monotonic() - began >= LIMIT_S:
                break
        runner.forget(np.arange(info.max_rows, dtype=np.int32))
    if not num_served:
        raise ModelError(
            f"{config.model.model}: it is loaded, and each of the {len(errors)} requests of its "
            f"rehearsal failed, the first by: {errors[0]}"
        )


def _serve(engine: Engine, request: Request) -> str | None:
    """Serve a request alone; returns the error that ended it, None where it was served."""
    message = decode_message(encode(FrontendMessage(submit=[request])))
    engine.submit(b"", message.submit[0])
    error = None
    while engine.has_work:
        for _, output in engine.step():
            encode(output)
            error = output.errors.get(request.handle, error)
    return error


def _requests(info: EngineInfo) -> Iterator[Request]:
    """Greedy and random requests in turn, in two rounds; no prompt begins as another does."""
    longest = max(info.max_model_len - NUM_TOKENS, 1)
    for handle, prompt_len in enumerate(PROMPT_LENS * 2):  # an odd number: the rounds differ
        token_ids = handle + np.arange(min(prompt_len, longest), dtype=np.int32)
        yield Request(
            handle=handle,
            prompt_token_ids=token_ids % info.vocab_size,
            params=SamplingParams(temperature=float(handle % 2)),
            max_tokens=NUM_TOKENS,
        )
