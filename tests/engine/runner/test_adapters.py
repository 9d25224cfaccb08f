"""Rows of many adapters and of none through the whole engine, against merged models.

Logprobs are float32 and within 1e-4 of transformers' own; tokens are the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine.config import (
    AdaptersConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.engine import Engine
from engine.errors import ConfigError, ControlError
from engine.messages.request import PromptLogprobsParams, ScoringRequest
from engine.messages.step_output import Finish, ItemScores
from engine.planning import prefixes
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.adapters.peft import ENDS, source_of, write_adapter
from tests.engine.parallel.emulated import engine_of
from tests.engine.tiny_models import VOCAB, write_model
from tests.engine.traffic import FRONTEND, Inbox, request, run, step

NAMES = ("one", "two", "three", "four")
RANKS = (4, 8, 1, 3)
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
NUM_TOKENS = 9


class Models(NamedTuple):
    """A base in a folder, with adapters beside it, and transformers' models by adapter's name."""

    folder: Path
    models: dict[str, PreTrainedModel]

    @property
    def modules(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, str(self.folder / name)) for name in NAMES)

    @torch.inference_mode()
    def greedy(self, name: str, prompt: list[int]) -> list[int]:
        ids = list(prompt)
        for _ in range(NUM_TOKENS):
            ids.append(int(self.models[name](torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    @torch.inference_mode()
    def logprobs(self, name: str, ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.models[name](torch.tensor([ids])).logits[0]
        return logits.log_softmax(-1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make(tmp_path_factory.mktemp("adapters"))


def make(folder: Path, kind: str = "qwen3", **config: Any) -> Models:
    models = {"": write_model(kind, folder / "base", **config)}
    for seed, (name, rank) in enumerate(zip(NAMES, RANKS, strict=True)):
        models[name] = write_adapter(
            models[""],
            folder / name,
            seed,
            rank=rank,
            is_wanted=lambda name: not name.endswith("shared_expert_gate"),
            ends=ENDS,
            experts=True,
        )
    return Models(folder, models)


def config_of(made: Models, **fields: Any) -> EngineConfig:
    adapters = {"max_loras": 2, "max_rank": 8, "modules": made.modules} | fields.pop("adapters", {})
    defaults: dict[str, Any] = {
        "model": ModelConfig(model=str(made.folder / "base"), device="cpu"),
        "cache": CacheConfig(block_size=4, num_blocks=120),
        "scheduler": SchedulerConfig(max_rows=6, max_step_tokens=12),
        "adapters": AdaptersConfig(**adapters),
    }
    return EngineConfig(**(defaults | fields))


def some_prompts(count: int, seed: int = 0) -> list[tuple[str, list[int]]]:
    """Prompts that begin alike, each with an adapter or none."""
    rng = random.Random(seed)
    base = [rng.randrange(2, VOCAB) for _ in range(20)]
    return [
        (("", *NAMES)[i % 5], [*base[: rng.randrange(21)], rng.randrange(2, VOCAB)])
        for i in range(count)
    ]


def ask(engine: Engine, asked: Sequence[tuple[str, list[int]]], **fields: Any) -> Inbox:
    inbox = Inbox()
    for handle, (name, prompt) in enumerate(asked):
        own = {"params": GREEDY, "max_tokens": NUM_TOKENS, "adapter": name} | fields
        engine.submit(FRONTEND, request(handle, prompt, **own))
        step(engine, inbox, handle % 3)
    run(engine, inbox)
    return inbox


def check(made: Models, asked: Sequence[tuple[str, list[int]]], inbox: Inbox) -> None:
    for handle, (name, prompt) in enumerate(asked):
        assert inbox.tokens[handle, 0] == made.greedy(name, prompt), (handle, name)


def test_tokens_are_those_of_merged_models(made: Models) -> None:
    """More adapters than slots, in chunks, with prefixes that begin alike for all of them."""
    engine = build_engine(config_of(made))
    asked = some_prompts(25)
    check(made, asked, ask(engine, asked))
    again = ask(engine, asked)
    check(made, asked, again)
    assert sum(again.cached.values()) > 0, "prefixes are found"


def test_preempted_choices_keep_their_adapters(made: Models) -> None:
    engine = build_engine(config_of(made, cache=CacheConfig(block_size=4, num_blocks=22)))
    asked = some_prompts(15, seed=1)
    check(made, asked, ask(engine, asked))
    assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_verified_drafts_are_those_of_the_adapter(made: Models, method: Any) -> None:
    engine = build_engine(
        config_of(made, speculation=SpeculativeConfig(method=method, num_speculative_tokens=2))
    )
    asked = [(name, prompt * 3) for name, prompt in some_prompts(10, seed=2)]
    check(made, asked, ask(engine, asked))


def test_logprobs_of_tokens_and_prompts(made: Models) -> None:
    engine = build_engine(config_of(made))
    asked = [(name, [*prompt, 5, 6, 7]) for name, prompt in some_prompts(5, seed=3)]
    inbox = ask(engine, asked, prompt_logprobs=PromptLogprobsParams(token_ids=(3,)))
    for handle, (name, prompt) in enumerate(asked):
        wanted = made.logprobs(name, prompt)[:-1, 3].numpy()
        got = inbox.prompt_logprobs[handle].logprobs.explicit[:, 0]
        np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_scores_are_those_of_the_adapter(made: Models) -> None:
    engine = build_engine(config_of(made))
    asked = [(name, [9, 8, 7, 6, 5, *prompt]) for name, prompt in some_prompts(10, seed=4)]
    scores: dict[int, ItemScores] = {}
    for handle, (name, prompt) in enumerate(asked):
        engine.score(FRONTEND, scoring_request(handle, prompt, name))
    while engine.has_work:
        for _, output in engine.step():
            scores |= {each.handle: each for each in output.item_scores}
    engine.check()
    for handle, (name, prompt) in enumerate(asked):
        assert scores[handle].finish == Finish.LENGTH
        wanted = made.logprobs(name, [*prompt, 11])[-1, [3, 4]].numpy()
        np.testing.assert_allclose(scores[handle].values[0], wanted, atol=1e-4)


def scoring_request(handle: int, query: list[int], adapter: str) -> ScoringRequest:
    one = np.array([1], dtype=np.int32)
    return ScoringRequest(
        handle=handle,
        query_token_ids=np.array(query, dtype=np.int32),
        item_token_ids=np.array([11], dtype=np.int32),
        item_lens=one,
        num_read=one,
        id_lists=np.array([[3, 4]], dtype=np.int32),
        adapter=adapter,
    )


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "gpt_oss"])
def test_ranks_have_their_parts(kind: str, tmp_path: Path) -> None:
    made = make(tmp_path, kind, vocab_size=1100)  # each rank has ids
    asked = some_prompts(10, seed=5)
    with engine_of(config_of(made, tensor_parallel_size=2)) as (engine, _):
        check(made, asked, ask(engine, asked))


def test_a_wrong_prefix_would_be_seen(made: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant whose hashes have no adapter finds blocks of others."""
    monkeypatch.setattr(prefixes, "_digest", lambda choice: b"")
    engine = build_engine(config_of(made))
    asked = [(name, [9, 8, 7, 6, 5, 4, 3, 2, 10]) for name in ("", *NAMES)]
    with pytest.raises(AssertionError):
        check(made, asked, ask(engine, asked))


def test_a_prefix_of_a_replaced_adapter_is_not_found(made: Models) -> None:
    engine, ends = build_engine(config_of(made, adapters={"modules": made.modules[:1]})), Ends()
    prompt = [9, 8, 7, 6, 5, 4, 3, 2, 10]
    check(made, [("one", prompt)], ask(engine, [("one", prompt)]))
    ends.load(engine, "one", made.folder / "two", replaces=True)
    for _ in settled(engine, ends, 1):
        assert engine.adapters is not None
        engine.adapters.settle()
    inbox = ask(engine, [("one", prompt)])
    assert inbox.tokens[0, 0] == made.greedy("two", prompt)
    assert not inbox.cached[0]


class Ends:
    """What loads came to, by order of their ends."""

    def __init__(self) -> None:
        self.errors: list[ControlError | None] = []

    def load(self, engine: Engine, name: str, path: Path, *, replaces: bool = False) -> None:
        assert engine.adapters is not None
        source = source_of(path)
        engine.adapters.load(name, source, replaces=replaces, done=self.errors.append)


def settled(engine: Engine, ends: Ends, count: int) -> Iterator[None]:
    while len(ends.errors) < count:
        yield


def test_a_running_choice_keeps_the_adapter_it_began_with(made: Models) -> None:
    engine = build_engine(config_of(made, adapters={"modules": made.modules[:1]}))
    prompt, inbox, ends = [9, 8, 7, 6, 5], Inbox(), Ends()
    own: dict[str, Any] = {"params": GREEDY, "max_tokens": NUM_TOKENS, "adapter": "one"}
    assert engine.adapters is not None
    [began] = [each.digest for each in engine.adapters.named if each.name == "one"]
    engine.submit(FRONTEND, request(0, prompt, **own, adapter_digest=began))
    step(engine, inbox, 3)
    ends.load(engine, "one", made.folder / "two", replaces=True)
    for _ in settled(engine, ends, 1):
        assert engine.adapters is not None
        engine.adapters.settle()
    engine.submit(FRONTEND, request(1, prompt, **own))
    engine.submit(FRONTEND, request(3, prompt, **own, adapter_digest=began))
    step(engine, inbox, 2)
    assert engine.adapters is not None
    engine.adapters.unload("one")
    engine.submit(FRONTEND, request(2, prompt, **own))
    run(engine, inbox)
    assert inbox.tokens[0, 0] == made.greedy("one", prompt)
    assert inbox.tokens[1, 0] == made.greedy("two", prompt)
    assert inbox.finish[2, 0] == Finish.ADAPTER
    assert "no adapter 'one'" in inbox.errors[2]
    assert inbox.finish[3, 0] == Finish.ADAPTER
    assert "the adapter 'one' was replaced" in inbox.errors[3]
    assert engine.adapters.named == ()


def test_adapters_come_and_go_under_load(made: Models) -> None:
    """Loads, replacements and unloads among requests; each has the adapter of its submission."""
    limits = {"modules": (), "max_loras": 2, "max_cpu_loras": 2}
    engine = build_engine(config_of(made, adapters=limits))
    assert engine.adapters is not None
    rng, inbox, ends, asked = random.Random(0), Inbox(), Ends(), []
    named: dict[str, str] = {}
    for handle in range(40):
        name, other = rng.choice("abc"), rng.choice(NAMES)
        if name in named and rng.random() < 0.2:
            engine.adapters.unload(name)
            del named[name]
        else:
            ends.load(engine, name, made.folder / other, replaces=True)
            while engine.adapters.readings:
                step(engine, inbox)
            named[name] = other
        chosen = rng.choice(["", *named])
        asked.append((named.get(chosen, ""), prompt := some_prompts(1, handle)[0][1]))
        own = {"params": GREEDY, "max_tokens": NUM_TOKENS, "adapter": chosen}
        engine.submit(FRONTEND, request(handle, prompt, **own))
        step(engine, inbox, rng.randrange(4))
    run(engine, inbox)
    check(made, asked, inbox)
    assert ends.errors == [None] * len(ends.errors)
    for name in named:
        engine.adapters.unload(name)
    engine.check()


def test_refused_loads_leave_all_as_it_was(made: Models, tmp_path: Path) -> None:
    engine, ends = build_engine(config_of(made, adapters={"modules": made.modules[:1]})), Ends()
    ends.load(engine, "one", made.folder / "two")
    ends.load(engine, "new", tmp_path / "nowhere")
    for _ in settled(engine, ends, 2):
        assert engine.adapters is not None
        engine.adapters.settle()
    exists, refused = ends.errors
    assert exists is not None
    assert refused is not None
    assert (exists.code, refused.code) == ("adapter_exists", "adapter_refused")
    assert "is not a folder" in str(refused)
    asked = [("one", [9, 8, 7])]
    check(made, asked, ask(engine, asked))


def test_a_start_names_what_it_cannot_load(made: Models, tmp_path: Path) -> None:
    modules = (("bad", str(tmp_path)),)
    with pytest.raises(ConfigError, match=r"--lora-modules bad=.*has no adapter_config\.json"):
        build_engine(config_of(made, adapters={"modules": modules}))
    with pytest.raises(ConfigError, match="--max-lora-rank 8"):
        build_engine(config_of(made, adapters={"max_rank": 4}))


@pytest.mark.parametrize("kind", ["qwen3", "qwen2_moe"])
def test_batch_invariance_holds_with_adapters(kind: str, tmp_path: Path) -> None:
    """Logprobs of a request alone are those that it has among others, bit for bit."""
    made = make(tmp_path, kind)
    model = ModelConfig(model=str(made.folder / "base"), device="cpu", batch_invariant=True)
    asked = some_prompts(10, seed=6)
    wanted = PromptLogprobsParams(token_ids=(3,))
    own = partial(ask, prompt_logprobs=wanted)
    among = own(build_engine(config_of(made, model=model)), asked)
    alone_engine = build_engine(config_of(made, model=model))
    for handle, one in enumerate(asked):
        alone = own(alone_engine, [one])
        assert alone.tokens[0, 0] == among.tokens[handle, 0]
        if len(one[1]) > 1:
            mine, theirs = alone.prompt_logprobs[0], among.prompt_logprobs[handle]
            assert np.array_equal(mine.logprobs.explicit, theirs.logprobs.explicit)
