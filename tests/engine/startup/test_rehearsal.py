"""A rehearsal runs steps of every kind that a first request runs, and leaves no trace of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file

from engine.config import CacheConfig, EngineConfig, ModelConfig, SamplingConfig, SchedulerConfig
from engine.contracts.runner import RunnerLostError
from engine.engine import Engine
from engine.errors import ModelError
from engine.memory.blocks import NULL_BLOCK
from engine.messages.step_output import Finish
from engine.parallel.lead import LeadRunner
from engine.parallel.messages import Forget, Message, decode, encode
from engine.plan import StepPlan
from engine.planning.drafting import NO_DRAFTS
from engine.runner.model_runner import ModelRunner
from engine.speculative_config import SpeculativeConfig
from engine.startup import build, built_runner, rehearsal
from engine.startup.build import build_engine
from engine.startup.rank import Follower
from engine.startup.rehearsal import LIMIT_S, NUM_TOKENS, PROMPT_LENS, rehearse
from sampling.params import SamplingParams
from tests.engine.paged_fake import PagedFake, make_engine
from tests.engine.runner.drafting_engines import requests, run
from tests.engine.tiny_models import write_model

NGRAMS = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
KINDS = [
    SamplingParams(logprobs=2),
    SamplingParams(presence_penalty=0.5, repetition_penalty=1.2),
    SamplingParams(seed=3, top_p=0.8),
    SamplingParams(temperature=0.0),
]


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine rehearses as much as others."""
    monkeypatch.setattr(rehearsal, "LIMIT_S", 600.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_model("llama", folder)
    return folder


def make(folder: Path, speculation: SpeculativeConfig | None = None) -> Engine:
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), device="cpu"),
            cache=CacheConfig(block_size=8, num_blocks=200),
            scheduler=SchedulerConfig(max_rows=6, max_step_tokens=64),
            sampling=SamplingConfig(seed=11),
            speculation=speculation,
        )
    )


def unrehearsed(make: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch) -> Engine:
    with monkeypatch.context() as patch:
        patch.setattr(build, "rehearse", lambda *args: None)
        return make()


@pytest.mark.parametrize("speculation", [None, NGRAMS])
def test_nothing_of_it_is_left(
    speculation: SpeculativeConfig | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics, tokens and logprobs are those of an engine that never rehearsed."""
    ours = make(folder, speculation)
    theirs = unrehearsed(lambda: make(folder, speculation), monkeypatch)
    assert ours.stats() == theirs.stats()
    ours.check()
    runner = ours._parts.runner
    assert isinstance(runner, ModelRunner)
    assert bool((runner._rows.block_tables == NULL_BLOCK).all())
    assert not runner._sampling_rows.flags_np.any()
    asked = requests(KINDS, n=2, max_tokens=6)
    one, other = run(ours, asked), run(theirs, asked)
    after, after_other = (structs.replace(each.stats(), timings=None) for each in (ours, theirs))
    assert one.keys() == other.keys()
    for key, reply in one.items():
        assert (reply.tokens, reply.finish) == (other[key].tokens, other[key].finish)
        for mine, its in zip(reply.logprobs, other[key].logprobs, strict=True):
            for name in mine.__struct_fields__:
                np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))
    assert after == after_other


class Rehearsed(PagedFake):
    """Notes the prompts that are admitted, their temperatures, and the rows forgotten."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.prompts: list[tuple[int, float]] = []
        self.num_decodes = 0
        self.forgotten: list[int] = []

    def launch(self, plan: StepPlan) -> Any:
        choices = [admission.choice for admission in plan.admissions]
        assert len(plan.rows) == 1, "one request after the other"
        assert all(admission.num_computed == 0 for admission in plan.admissions)
        self.prompts += [(each.prompt_len, each.request.params.temperature) for each in choices]
        self.num_decodes += plan.is_decode
        return super().launch(plan)

    def forget(self, rows: Any) -> None:
        self.forgotten = rows.tolist()


def rehearsed(
    max_model_len: int = 256, kind: type[Rehearsed] = Rehearsed, **fields: Any
) -> Rehearsed:
    """Rehearse over a fake whose attributes are set to `fields`."""
    engine, _ = make_engine(max_model_len=max_model_len, num_blocks=100)
    fake = kind(engine.info.max_rows, max_model_len + 1, 100, engine.info.block_size)
    for name, value in fields.items():
        setattr(fake, name, value)
    config = EngineConfig(
        model=ModelConfig(model="fake"),
        cache=CacheConfig(block_size=engine.info.block_size),
        scheduler=SchedulerConfig(max_rows=engine.info.max_rows, max_step_tokens=16),
    )
    rehearse(config, engine.info, fake, NO_DRAFTS)
    return fake


def test_prompts_of_every_length_are_greedy_and_random() -> None:
    fake = rehearsed()
    wanted = [(length, temperature) for length in PROMPT_LENS for temperature in (0.0, 1.0)]
    assert sorted(fake.prompts) == sorted(wanted)
    assert fake.num_decodes >= len(wanted) * (NUM_TOKENS - 1)
    assert fake.forgotten == list(range(4))


@pytest.mark.parametrize("max_model_len", [1, 3, 20])
def test_prompts_fit_a_short_context(max_model_len: int) -> None:
    lengths = {length for length, _ in rehearsed(max_model_len).prompts}
    assert max(lengths) == max(max_model_len - NUM_TOKENS, 1)


def test_a_slow_engine_serves_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIMIT_S < 0.3
    monkeypatch.setattr(rehearsal, "LIMIT_S", 0.0)
    assert rehearsed().prompts == [(PROMPT_LENS[0], 0.0)]


def test_a_step_that_raises_ends_its_request_alone() -> None:
    fake = rehearsed(fail_next=True)
    assert len(fake.prompts) == 2 * len(PROMPT_LENS)
    assert fake.forgotten == list(range(4))


class Failing(Rehearsed):
    """A runner each of whose steps raises."""

    def launch(self, plan: StepPlan) -> Any:
        self.fail_next, self.failure = True, KeyError(f"step {len(self.prompts)}")
        return super().launch(plan)


def test_a_model_of_which_every_step_raises_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "LIMIT_S", 0.0)  # a first one that fails is not enough
    with pytest.raises(ModelError, match=r"fake: .* each of the 10 requests .* 'step 0'") as error:
        rehearsed(kind=Failing)
    assert "\n" not in str(error.value)


def test_a_runner_that_is_lost_ends_the_start() -> None:
    with pytest.raises(RunnerLostError, match="illegal"):
        rehearsed(fail_next=True, failure=RunnerLostError("an illegal memory access"))


def test_a_model_of_nan_starts_and_says_so_to_its_clients(tmp_path: Path) -> None:
    write_model("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name: torch.full_like(each, torch.nan) for name, each in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    engine = make(tmp_path)
    assert engine.stats().nan_rows == 0
    replies = run(engine, requests([SamplingParams()], n=1))
    assert {reply.finish for reply in replies.values()} == {Finish.NAN}


def test_what_a_rehearsal_compiles_is_not_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[object] = []
    for module in (built_runner, build):
        monkeypatch.setattr(module, "on_compilation", listeners.append)
    monkeypatch.setattr(build, "rehearse", lambda *args: listeners.append("rehearsal"))
    make(folder)
    assert listeners[-3:-1] == [None, "rehearsal"]
    assert callable(listeners[-1])


def test_other_ranks_forget_too() -> None:
    class Noting:
        """A runner that notes the rows it forgets, and what the others are reported."""

        def __init__(self) -> None:
            self.forgotten: list[list[int]] = []
            self.reported: list[Message] = []

        def forget(self, rows: Any) -> None:
            self.forgotten.append(rows.tolist())

        def send(self, message: Message) -> None:
            self.reported.append(decode(encode(message)))

    first, second = Noting(), Noting()
    rows = np.arange(3, dtype=np.int32)
    LeadRunner(first, np.zeros((0, 1), dtype=np.int32), first).forget(rows)  # type: ignore[arg-type]
    (message,) = first.reported
    assert isinstance(message, Forget)
    Follower(second, lambda reading: None).follow(message)  # type: ignore[arg-type]
    assert first.forgotten == second.forgotten == [[0, 1, 2]]
