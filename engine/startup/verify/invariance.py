"""Shows that bits do not depend on the batch: what `tailrace verify --batch-invariant` adds.

A few requests are served one at a time, whole, by an engine of the configuration. Then they are
served in every other way that an engine has: beside one another, in chunks of many sizes, after
their prefixes were cached, with too few blocks for all, scored as prompts and as items, with
drafts, and without graphs. Each way must give every position the same tokens and the same
log-probabilities to the last bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec import structs

from engine.arrays import Float32Array, Int32Array
from engine.config import EngineConfig, EngineInfo
from engine.engine import Engine
from engine.request import PromptLogprobsParams, Request, ScoringRequest
from engine.speculative_config import SpeculativeConfig
from engine.startup.parts import EngineParts
from sampling.params import SamplingParams
from sampling.selftest.checks import Result

PROMPT_LENS = (1, 2, 15, 16, 17, 40, 63, 64, 65, 100, 129, 200)
NUM_TOKENS, NUM_IDS = 20, 64
CHUNKS = (5, 16, 33, 64, 100, 250)
"""Token budgets of steps."""
NUM_DRAFTS = 3

Build = Callable[[EngineConfig], EngineParts]
"""Makes the parts of a configuration, over a model that is loaded once."""


class _Values(NamedTuple):
    """What a request's positions have: tokens [T], log-probabilities [T, J]."""

    tokens: Int32Array
    logprobs: Float32Array


@dataclass
class _Served:
    """What the requests of a way got, by handle."""

    replies: dict[int, _Values] = field(default_factory=dict)
    prompts: dict[int, Float32Array] = field(default_factory=dict)


class _Way(NamedTuple):
    """A way to serve the requests.

    Attributes:
        budget: tokens of a step; None is the configuration's.
        max_rows: choices at once; None is the configuration's.
        num_blocks: of the cache; None is all of it.
        together: the requests are submitted at once, not each after the one before has ended.
        rounds: how often they are served by one engine, which reuses prefixes if that is twice.
    """

    budget: int | None = None
    max_rows: int | None = None
    num_blocks: int | None = None
    together: bool = True
    rounds: int = 1


def invariance_results(
    config: EngineConfig, build: Build, prompt_lens: Sequence[int] = PROMPT_LENS
) -> Iterator[Result]:
    """Serve in every way and compare; a `Result` for each.

    Args:
        prompt_lens: of the requests' prompts.
    """
    parts = build(config)
    requests = _requests(parts.info, prompt_lens)
    alone = _serve(parts, requests, _Way(together=False))
    for name, way in _ways(parts.info, requests):
        yield _compared(name, alone, _serve(parts, requests, way))
    yield _compared("scored as prompts", alone, _rescored(parts, requests, alone))
    yield _compared("scored as items", alone, _scored(parts, requests, alone))
    on_gpu = parts.info.device != "cpu"
    del parts
    for name, other in _other_configs(config, on_gpu=on_gpu):
        gc.collect()
        yield _compared(name, alone, _serve(build(other), requests, _Way()))


def _ways(info: EngineInfo, requests: Sequence[Request]) -> Iterator[tuple[str, _Way]]:
    longest = max(len(request.prompt_token_ids) + request.max_tokens for request in requests)
    yield "beside one another", _Way()
    for budget in CHUNKS:
        yield f"in chunks of {budget}", _Way(budget, max_rows=min(4, info.max_rows))
    yield "after cached prefixes", _Way(rounds=2)
    few = 2 + -(-longest * 3 // (2 * info.block_size))
    yield f"preempted, {few} blocks", _Way(num_blocks=min(few, info.num_blocks))


def _other_configs(config: EngineConfig, *, on_gpu: bool) -> Iterator[tuple[str, EngineConfig]]:
    """Configurations whose runners differ."""
    ngram = SpeculativeConfig(method="ngram", num_speculative_tokens=NUM_DRAFTS)
    yield f"verified, {NUM_DRAFTS} drafts", structs.replace(config, speculation=ngram)
    if config.cuda_graphs and on_gpu:
        yield "without graphs", structs.replace(config, cuda_graphs=False)


def _requests(info: EngineInfo, prompt_lens: Sequence[int]) -> list[Request]:
    """Greedy and seeded requests of many lengths; some begin alike."""
    rng = np.random.default_rng(0)
    room = max(info.max_model_len - NUM_TOKENS, 1)
    shared = rng.integers(0, info.vocab_size, max(prompt_lens)).astype(np.int32)
    made = []
    for handle, length in enumerate(prompt_lens):
        prompt = shared[: min(length, room)].copy()
        if handle % 3 == 0:
            own = len(prompt) - len(prompt) // 2
            prompt[-own:] = rng.integers(0, info.vocab_size, own)
        made.append(
            Request(
                handle=handle,
                prompt_token_ids=prompt,
                params=SamplingParams(
                    temperature=float(handle % 2), seed=handle, logprob_token_ids=_ids(info)
                ),
                max_tokens=NUM_TOKENS,
                prompt_logprobs=PromptLogprobsParams(token_ids=_ids(info)),
            )
        )
    return made


def _ids(info: EngineInfo) -> tuple[int, ...]:
    """Ids all over the vocabulary."""
    ids = np.linspace(0, info.vocab_size - 1, min(NUM_IDS, info.vocab_size)).astype(int)
    return tuple(ids.tolist())


def _serve(parts: EngineParts, requests: Sequence[Request], way: _Way) -> _Served:
    """Serve requests in a way, and leave the runner as it was."""
    config, info = parts.config, parts.info
    max_rows = way.max_rows or info.max_rows
    scheduler = structs.replace(
        config.scheduler,
        max_rows=max_rows,
        max_step_tokens=max(way.budget or config.scheduler.step_tokens, max_rows),
    )
    cache = structs.replace(config.cache, prefix_caching=way.rounds > 1)
    config = structs.replace(config, scheduler=scheduler, cache=cache)
    info = structs.replace(info, max_rows=max_rows, num_blocks=way.num_blocks or info.num_blocks)
    engine, served = parts._replace(config=config, info=info).engine(), _Served()
    for last in range(1 - way.rounds, 1):
        for request in requests:
            if way.rounds > 1:  # positions that are reported are computed
                request = structs.replace(request, prompt_logprobs=None)
            engine.submit(b"", request)
            if not way.together:
                _read(engine, served)
        served = served if last == 0 else _Served()
        _read(engine, served)
    parts.runner.forget(np.arange(info.max_rows, dtype=np.int32))
    return served


def _read(engine: Engine, served: _Served) -> None:
    """Step until the engine has no work left, and enter what it reports."""
    found: dict[int, list[_Values]] = {}
    while engine.has_work:
        for _, output in engine.step():
            start = 0
            for handle, count in zip(output.handles.tolist(), output.num_new.tolist(), strict=True):
                if count and output.logprobs is not None:
                    own = slice(start, start + count)
                    tokens = output.token_ids[own].copy()
                    values = _Values(tokens, output.logprobs.explicit[own].copy())
                    found.setdefault(handle, []).append(values)
                start += count
            for prompt in output.prompt_logprobs:
                served.prompts[prompt.handle] = prompt.logprobs.explicit.copy()
            for scores in output.item_scores:
                served.prompts[scores.handle] = scores.values.copy()
    for handle, steps in found.items():
        tokens, logprobs = map(np.concatenate, zip(*steps, strict=True))
        served.replies[handle] = _Values(tokens, logprobs)


def _whole(alone: _Served, requests: Sequence[Request]) -> Iterator[tuple[Request, Int32Array]]:
    """Each request with its prompt and its reply but for the last token."""
    for request in requests:
        reply = alone.replies[request.handle].tokens
        yield request, np.concatenate([request.prompt_token_ids, reply[:-1]])


def _rescored(parts: EngineParts, requests: Sequence[Request], alone: _Served) -> _Served:
    """Prompts with their replies as prompts: the values of the replies' positions."""
    longer = [
        structs.replace(request, prompt_token_ids=tokens, max_tokens=1)
        for request, tokens in _whole(alone, requests)
    ]
    served, split = _serve(parts, longer, _Way()), _Served()
    for request in requests:
        values = served.prompts.get(request.handle, np.zeros((0, 0), np.float32))
        count = len(request.prompt_token_ids)
        last = served.replies[request.handle]
        replied = np.concatenate([values[count - 1 :], last.logprobs])
        tokens = np.concatenate([alone.replies[request.handle].tokens[:-1], last.tokens])
        split.replies[request.handle] = _Values(tokens, replied)
        split.prompts[request.handle] = values[: count - 1]
    return split


def _scored(parts: EngineParts, requests: Sequence[Request], alone: _Served) -> _Served:
    """Replies as items after their prompts."""
    info, served, engine = parts.info, _Served(), parts.engine()
    for request in requests:
        reply = alone.replies[request.handle].tokens
        engine.score(
            b"",
            ScoringRequest(
                handle=request.handle,
                query_token_ids=request.prompt_token_ids[:-1],
                item_token_ids=np.concatenate([request.prompt_token_ids[-1:], reply[:-1]]),
                item_lens=np.array([len(reply)], dtype=np.int32),
                num_read=np.array([len(reply)], dtype=np.int32),
                id_lists=np.array([_ids(info)], dtype=np.int32),
            ),
        )
    _read(engine, served)
    parts.runner.forget(np.arange(info.max_rows, dtype=np.int32))
    replies = {
        handle: _Values(alone.replies[handle].tokens, values)
        for handle, values in served.prompts.items()
    }
    return _Served(replies)


def _compared(name: str, alone: _Served, served: _Served) -> Result:
    """The line of a way: how many positions have other bits than served alone."""
    num_positions, differing = 0, []
    for handle, wanted in alone.replies.items():
        got = served.replies[handle]
        num_positions += len(wanted.tokens)
        first = len(alone.prompts.get(handle, ())) + 1
        differing += [(handle, first + i) for i in _differing(wanted.logprobs, got.logprobs)]
        if not np.array_equal(wanted.tokens, got.tokens):
            differing.append((handle, first))
        if handle in served.prompts and handle in alone.prompts:
            num_positions += len(alone.prompts[handle])
            found = _differing(alone.prompts[handle], served.prompts[handle])
            differing += [(handle, 1 + i) for i in found]
    words = f"{len(differing)} of {num_positions} positions differ"
    path = "bits as alone"
    if differing:
        handle, position = min(differing, key=lambda place: place[1])
        path = f"first: request {handle}, position {position}"
    return Result(f"invariance: {name}", path, words, "0", 0.0, not differing)


def _differing(wanted: Float32Array, got: Float32Array) -> list[int]:
    """The positions whose values differ in a bit."""
    if wanted.shape != got.shape:
        return list(range(max(len(wanted), len(got), 1)))
    bits = wanted.view(np.uint32) != got.view(np.uint32)
    return np.flatnonzero(bits.any(axis=1)).tolist()
