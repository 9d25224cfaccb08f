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
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from msgspec import structs

from engine.arrays import Int32Array
from engine.config import EngineConfig
from engine.contracts.info import EngineInfo
from engine.contracts.model import CausalLM
from engine.engine import Engine
from engine.messages.request import PromptLogprobsParams, Request, ScoringRequest
from engine.speculative_config import SpeculativeConfig
from engine.startup.parts import BuildParts, EngineParts
from engine.startup.verify.differences import PositionValues, ServedBits, first_differing, result_of
from engine.startup.verify.first_layer import LayerDigests, first_difference
from sampling.params import SamplingParams
from sampling.selftest.checks import Result

PROMPT_LENS = (1, 2, 15, 16, 17, 40, 63, 64, 65, 100, 129, 200)
NUM_TOKENS, NUM_IDS = 20, 64
CHUNKS = (5, 16, 33, 64, 100, 250)
"""Token budgets of steps."""
NUM_DRAFTS = 3


_Serve = Callable[[EngineParts], "ServedBits"]


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
    config: EngineConfig, build: BuildParts, prompt_lens: Sequence[int] = PROMPT_LENS
) -> Iterator[Result]:
    """Serve in every way and compare; a `Result` for each.

    Args:
        prompt_lens: of the requests' prompts.
    """
    parts = build(config)
    info = parts.info
    requests = _requests(info, prompt_lens)
    alone = _serve(parts, requests, _Way(together=False))
    found = [
        (name, config, serve, first_differing(alone, serve(parts)))
        for name, serve in _by_one_runner(info, requests, alone)
    ]
    del parts
    for name, other in _other_configs(config, on_gpu=info.device != "cpu"):
        gc.collect()
        serve_it: _Serve = partial(_serve, requests=requests, way=_Way())
        found.append((name, other, serve_it, first_differing(alone, serve_it(build(other)))))
    for name, own, serve, difference in found:
        where = None
        if difference.place is not None:
            handle, position = difference.place
            where = _layer_of(build, own, serve, requests[handle], position)
        yield result_of(name, difference, where)


def _by_one_runner(
    info: EngineInfo, requests: Sequence[Request], alone: ServedBits
) -> Iterator[tuple[str, _Serve]]:
    """The ways that one runner serves in."""
    for name, way in _ways(info, requests):
        yield name, partial(_serve, requests=requests, way=way)
    yield "scored as prompts", partial(_rescored, requests=requests, alone=alone)
    yield "scored as items", partial(_scored, requests=requests, alone=alone)


def _layer_of(
    build: BuildParts, config: EngineConfig, serve: _Serve, request: Request, position: int
) -> str:
    """Where the bits of a request's position begin to differ, without graphs."""
    eager = structs.replace(config, cuda_graphs=False)
    chains = []
    for own in (partial(_serve, requests=[request], way=_Way(together=False)), serve):
        gc.collect()
        watched: list[LayerDigests] = []

        def watch(model: CausalLM, watched: list[LayerDigests] = watched) -> CausalLM:
            watched.append(LayerDigests(model))
            return cast(CausalLM, watched[-1])

        parts = build(eager, watch)
        watched[0].chains.clear()  # of the start's own runs
        own(parts)
        chains.append(watched[0].chains[position - 1])  # whose logits are the position's
        del parts
    return first_difference(*chains) or "no layer, when it ran without graphs"


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


def _serve(parts: EngineParts, requests: Sequence[Request], way: _Way) -> ServedBits:
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
    engine, served = parts._replace(config=config, info=info).engine(), ServedBits()
    for last in range(1 - way.rounds, 1):
        for request in requests:
            if way.rounds > 1:  # positions that are reported are computed
                request = structs.replace(request, prompt_logprobs=None)
            engine.submit(b"", request)
            if not way.together:
                _read(engine, served)
        served = served if last == 0 else ServedBits()
        _read(engine, served)
    parts.runner.forget(np.arange(info.max_rows, dtype=np.int32))
    return served


def _read(engine: Engine, served: ServedBits) -> None:
    """Step until the engine has no work left, and enter what it reports."""
    found: dict[int, list[PositionValues]] = {}
    while engine.has_work:
        for _, output in engine.step():
            start = 0
            for handle, count in zip(output.handles.tolist(), output.num_new.tolist(), strict=True):
                if count and output.logprobs is not None:
                    own = slice(start, start + count)
                    tokens = output.token_ids[own].copy()
                    values = PositionValues(tokens, output.logprobs.explicit[own].copy())
                    found.setdefault(handle, []).append(values)
                start += count
            for prompt in output.prompt_logprobs:
                served.prompts[prompt.handle] = prompt.logprobs.explicit.copy()
            for scores in output.item_scores:
                served.prompts[scores.handle] = scores.values.copy()
    for handle, steps in found.items():
        tokens, logprobs = map(np.concatenate, zip(*steps, strict=True))
        served.replies[handle] = PositionValues(tokens, logprobs)


def _whole(alone: ServedBits, requests: Sequence[Request]) -> Iterator[tuple[Request, Int32Array]]:
    """Each request with its prompt and its reply but for the last token."""
    for request in requests:
        reply = alone.replies[request.handle].tokens
        yield request, np.concatenate([request.prompt_token_ids, reply[:-1]])


def _rescored(parts: EngineParts, requests: Sequence[Request], alone: ServedBits) -> ServedBits:
    """Prompts with their replies as prompts: the values of the replies' positions."""
    longer = [
        structs.replace(request, prompt_token_ids=tokens, max_tokens=1)
        for request, tokens in _whole(alone, requests)
    ]
    served, split = _serve(parts, longer, _Way()), ServedBits()
    for request in requests:
        values = served.prompts.get(request.handle, np.zeros((0, 0), np.float32))
        count = len(request.prompt_token_ids)
        last = served.replies[request.handle]
        replied = np.concatenate([values[count - 1 :], last.logprobs])
        tokens = np.concatenate([alone.replies[request.handle].tokens[:-1], last.tokens])
        split.replies[request.handle] = PositionValues(tokens, replied)
        split.prompts[request.handle] = values[: count - 1]
    return split


def _scored(parts: EngineParts, requests: Sequence[Request], alone: ServedBits) -> ServedBits:
    """Replies as items after their prompts."""
    info, served, engine = parts.info, ServedBits(), parts.engine()
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
        handle: PositionValues(alone.replies[handle].tokens, values)
        for handle, values in served.prompts.items()
    }
    return ServedBits(replies)
