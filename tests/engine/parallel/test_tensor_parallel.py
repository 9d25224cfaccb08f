"""Engines of two and four ranks do what an engine of one does, on the demo model in float32.

Sums of several ranks round otherwise than one rank's, by some 1e-6 of a logit. A token could differ
where two keys are closer than that: for the 500 tokens compared below, and 1e-5 a token to be safe,
the odds are 1 in 200 on a machine that none of this has run on, and none on one where it has, since
nothing here is random.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.arrays import LogprobArrays
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.contracts.control import MEMORY_PARTS, MemoryPart
from engine.contracts.runner import RunnerLostError
from engine.errors import ControlError
from engine.memory.sleeping import HostMemory
from engine.messages.request import Grammar, PromptLogprobsParams, Request, ScoringRequest
from engine.messages.step_output import Finish
from engine.speculative_config import SpeculativeConfig
from engine.startup.error_text import NAME
from sampling.params import SamplingParams
from tests.engine.models.families.shard_models import MODELS
from tests.engine.models.serving import write_tiny
from tests.engine.parallel.emulated import engine_of
from tests.engine.parallel.rank_engines import (
    ATOL,
    CONFIG,
    TEXTS,
    Results,
    _cut,
    assert_alike,
    assert_close,
    mixed,
    read,
)
from tests.engine.structured.constrained import TOKENIZER
from tests.engine.traffic import FRONTEND, request

SIZES = (2, 4)  # a key head each; two ranks a key head


def answers(config: EngineConfig, requests: Sequence[Request], *scoring: ScoringRequest) -> Results:
    with engine_of(config) as (engine, _):
        for one in requests:
            engine.submit(FRONTEND, one)
        for work in scoring:
            engine.score(FRONTEND, work)
        return read(engine)


@cache
def of_one_rank() -> Results:
    return answers(CONFIG, mixed())


def of(size: int, **fields: Any) -> EngineConfig:
    return structs.replace(CONFIG, tensor_parallel_size=size, **fields)


def assert_same_bits(mine: LogprobArrays, theirs: Sequence[LogprobArrays]) -> None:
    whole = LogprobArrays.concat(list(theirs))
    for name in ("chosen", "top_ids", "top_logprobs", "explicit"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(whole, name))


@pytest.mark.parametrize("size", SIZES)
def test_mixed_requests_get_what_one_rank_gives_them(size: int) -> None:
    alone, together = of_one_rank(), answers(of(size), mixed())
    assert_alike(together, alone)
    assert together.prompts.keys() == alone.prompts.keys() == set(range(0, 40, 5))
    for handle, arrays in together.prompts.items():
        assert_close(_cut(arrays, 3, 2), _cut(alone.prompts[handle], 3, 2))


@pytest.mark.parametrize("name", ["llama", "olmoe"])
def test_bits_that_do_not_depend_on_the_batch(name: str, tmp_path: Path) -> None:
    """Alone and whole, then beside others and in chunks, with `--batch-invariant`."""
    write_tiny(MODELS[name], tmp_path)
    model = structs.replace(
        CONFIG.model, model=str(tmp_path), max_model_len=100, batch_invariant=True
    )
    config = of(2, model=model, structured=None, scheduler=SchedulerConfig(max_rows=16))
    chunked = structs.replace(config, scheduler=SchedulerConfig(max_rows=16, max_step_tokens=17))
    requests = [
        request(
            i,
            [(7 * i + j) % 90 + 3 for j in range(5 + 9 * i)],
            params=SamplingParams(seed=i, logprobs=5, logprob_token_ids=(1, 50, 90)),
            max_tokens=9,
            prompt_logprobs=PromptLogprobsParams(num_top=3),
        )
        for i in range(6)
    ]
    together = answers(chunked, requests)
    for one in requests:
        alone = answers(config, [one])
        for key, parts in alone.logprobs.items():
            assert_same_bits(LogprobArrays.concat(parts), together.logprobs[key])
        for handle, prompt in alone.prompts.items():
            assert_same_bits(prompt, [together.prompts[handle]])


@pytest.mark.parametrize("name", ["olmoe", "deepseek-v3", "gpt-oss", "gemma3", "phi"])
def test_layers_that_ranks_divide_otherwise(name: str, tmp_path: Path) -> None:
    """Norms over all heads, compressed attention, sinks, norms of sums and one sum of attention and
    MLP: prompts in chunks too.
    """
    write_tiny(MODELS[name], tmp_path)
    model = structs.replace(CONFIG.model, model=str(tmp_path), max_model_len=100)
    requests = [
        request(
            i, list(range(7 * i + 3, 20 * i + 40)), params=SamplingParams(temperature=t, seed=i)
        )
        for i, t in enumerate((0.0, 0.0, 0.8, 1.1))
    ]
    scheduler = SchedulerConfig(max_rows=4, max_step_tokens=24)
    one, two = (
        answers(of(size, model=model, scheduler=scheduler, structured=None), requests)
        for size in (1, 2)
    )
    assert two.tokens == one.tokens


def test_preemption_changes_no_token() -> None:
    """Too few blocks for all: rows are preempted, and drawn again on every rank."""
    config = of(2, cache=CacheConfig(num_blocks=24, block_size=8, prefix_caching=False))
    config = structs.replace(config, model=structs.replace(config.model, max_model_len=128))
    with engine_of(config) as (engine, _):
        for one in mixed():
            engine.submit(FRONTEND, one)
        results = read(engine)
        assert engine.stats().num_preemptions > 0
    assert results.tokens == of_one_rank().tokens


def test_an_abort_leaves_the_others_as_they_are() -> None:
    with engine_of(of(2)) as (engine, _):
        for one in mixed():
            engine.submit(FRONTEND, one)
        early = [engine.step() for _ in range(4)]
        aborted = list(range(0, 40, 3))
        for handle in aborted:
            engine.abort(FRONTEND, handle)
        results = read(engine, before=early)
    for key, tokens in of_one_rank().tokens.items():
        if results.finish[key] != Finish.ABORT:
            assert results.tokens[key] == tokens
    assert sum(finish == Finish.ABORT for finish in results.finish.values()) > 5


def test_rounded_weights_and_keys_err_as_on_one_rank() -> None:
    """In float8 ranks round otherwise than one; they are no farther off than rounding itself is.

    Over 800 positions the standard deviation of the ratio of the mean errors is 0.03: the bound is
    six of them above one.
    """
    cache = structs.replace(CONFIG.cache, dtype="fp8")
    model = structs.replace(CONFIG.model, quantization="fp8")
    prompts = np.random.default_rng(8).integers(8000, size=(8, 101))
    requests = [
        request(i, ids, max_tokens=1, prompt_logprobs=PromptLogprobsParams(num_top=1))
        for i, ids in enumerate(prompts.tolist())
    ]

    def chosen(size: int, **fields: Any) -> np.ndarray:
        found = answers(of(size, **fields), requests).prompts
        return np.concatenate([found[handle].chosen for handle in sorted(found)])

    exact, alone = chosen(1), chosen(1, cache=cache, model=model)
    together = chosen(2, cache=cache, model=model)
    assert len(exact) == 800
    assert 0 < np.abs(together - exact).mean() < 1.2 * np.abs(alone - exact).mean()


def test_the_first_rank_states_the_error_on_its_text() -> None:
    model = structs.replace(CONFIG.model, quantization="fp8")
    with engine_of(of(2, model=model)) as (engine, _):
        statement = engine.info.quantization
    assert statement is not None
    assert statement.text.startswith(f"{NAME}, ")
    assert statement.mean_kl is not None
    assert 1e-5 < statement.mean_kl < 0.1


@pytest.mark.parametrize("size", SIZES)
def test_items_are_scored_as_by_one_rank(size: int) -> None:
    items = [TOKENIZER.encode(text) for text in ("path", "os.path", "sys", "(x, y)")]
    lens = np.array([len(item) for item in items], dtype=np.int32)
    asked = ScoringRequest(
        handle=7,
        query_token_ids=np.array(TOKENIZER.encode("import os\nprint("), dtype=np.int32),
        item_token_ids=np.concatenate(items).astype(np.int32),
        item_lens=lens,
        num_read=np.ones_like(lens),
        id_lists=np.array([[5, 8000, 300], [1, 2, -1]], dtype=np.int32),
    )
    alone = answers(CONFIG, mixed(2), asked).scores[7][0]
    together = answers(of(size), mixed(2), asked).scores[7][0]
    held = np.tile(asked.id_lists >= 0, (2, 1))
    np.testing.assert_allclose(together.values[held], alone.values[held], atol=ATOL)
    np.testing.assert_allclose(together.others, alone.others, atol=ATOL)


DRAFTERS = {"ngram": None, "eagle": str(EAGLE_FOLDER), "draft_model": str(MODEL_FOLDER)}


@pytest.mark.parametrize(
    ("drafter", "method", "sampled"),
    [
        *itertools.product(DRAFTERS, ["standard", "coupled"], ["greedy"]),
        ("eagle", "standard", "gumbel"),
    ],
)
def test_drafts_are_verified_by_all_ranks(drafter: Any, method: Any, sampled: Any) -> None:
    """With greedy drafts a seeded request gives what it gives without drafts."""
    speculation = SpeculativeConfig(
        method=drafter,
        model=DRAFTERS[drafter],
        num_speculative_tokens=3,
        rejection_sample_method=method,
        draft_sample_method=sampled,
    )
    alone = answers(structs.replace(CONFIG, speculation=speculation), mixed(24))
    together = answers(of(2, speculation=speculation), mixed(24))
    assert together.tokens == alone.tokens
    if sampled == "greedy":
        assert all(of_one_rank().tokens[key] == tokens for key, tokens in together.tokens.items())


def test_grammars_hold_on_every_rank() -> None:
    grammar = Grammar(source='%llguidance {}\nstart: "ab" /[0-9]{3}/ "]"')
    requests = [
        Request(
            handle=i,
            prompt_token_ids=np.array(TOKENIZER.encode(TEXTS[i % 5]), dtype=np.int32),
            params=SamplingParams(seed=i, temperature=1.5, constrained=i % 2 == 0, logprobs=1),
            max_tokens=12,
            grammar=grammar if i % 2 == 0 else None,
        )
        for i in range(8)
    ]
    alone, together = answers(CONFIG, requests), answers(of(2), requests)
    assert together.tokens == alone.tokens
    for handle in range(0, 8, 2):
        text = TOKENIZER.decode(together.tokens[handle, 0], skip_special_tokens=True)
        assert text.startswith("ab")
        assert text[2:5].isdigit()


def test_plans_are_small() -> None:
    """A step of decoding sends a few hundred bytes, whatever the vocabulary and the context."""
    with engine_of(of(2)) as (engine, others):
        for one in mixed(16):
            engine.submit(FRONTEND, one)
        read(engine)
    assert sorted(others.sent)[len(others.sent) // 2] < 1500


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_rank_that_has_no_room_to_wake_up_lets_all_sleep_on(
    lacking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is; they take steps together once it has."""
    config, memories = of(2, sleep_mode=True), list[HostMemory]()
    monkeypatch.setattr(HostMemory, "__init__", recorded(HostMemory.__init__, memories))
    take, is_full = HostMemory.take_again, True

    def take_again(self: HostMemory, part: MemoryPart) -> None:
        if is_full and memories.index(self) == lacking:
            raise ControlError("no room", "no_memory")
        take(self, part)

    monkeypatch.setattr(HostMemory, "take_again", take_again)
    asked = [request(0, TOKENIZER.encode(TEXTS[0]), params=SamplingParams(seed=1))]
    with engine_of(config) as (engine, others):
        engine.held.give_back(MEMORY_PARTS, keeps_weights=True)
        for _ in range(2):
            with pytest.raises(ControlError, match=r"^no room$") as refused:
                engine.held.take_again(MEMORY_PARTS)
            assert refused.value.code == "no_memory"
        is_full = False
        engine.held.take_again(MEMORY_PARTS)
        for each in asked:
            engine.submit(FRONTEND, each)
        tokens = read(engine).tokens
        assert others.failure() is None
    assert len(memories) == 2
    assert tokens == answers(of(1), asked).tokens


def recorded(make: Callable[[HostMemory], None], made: list[HostMemory]) -> Any:
    """A constructor that notes what it makes."""

    def init(self: HostMemory) -> None:
        made.append(self)
        make(self)

    return init


def test_what_a_rank_raises_ends_the_engine_with_its_name() -> None:
    with engine_of(of(2)) as (engine, others):
        engine.submit(FRONTEND, request(0, [1, 2, 3]))
        others.break_next("out of memory")
        with pytest.raises(RunnerLostError, match="rank 1: out of memory"):
            read(engine)
