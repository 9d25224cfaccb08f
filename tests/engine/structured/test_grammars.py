"""Choices under grammars in the engine's loop, over a runner that draws whatever it likes."""

from __future__ import annotations

import random
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from engine.arrays import Int32Array
from engine.config import GrammarLimits, StructuredConfig
from engine.contracts.scoring import ScoringPlan
from engine.engine import Engine
from engine.messages.request import Grammar, Request, ScoringRequest, ThinkingBudget
from engine.messages.step_output import Finish
from engine.plan import StepMasks, StepPlan
from engine.structured.awaited import AwaitedGrammars
from engine.structured.compiler import SHARED, GrammarCompiler
from engine.structured.grammars import Grammars
from engine.structured.masks import MaskFiller
from sampling.params import SamplingParams
from tests.engine.paged_fake import make_engine_over, reference
from tests.engine.scoring.scoring_fake import ScoringFake
from tests.engine.structured.constrained import EOS, Reader, ll_tokenizer, of_regex
from tests.engine.traffic import FRONTEND, prompts, request

ANYTHING, DIGITS = of_regex("(.|\n)*"), of_regex("[0-9]*")
PROMPT = [5, 6, 7]


class LoggedFake(ScoringFake):
    """Notes what is launched, drawn and waited for; steps are numbered."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.log: list[str] = []
        self.masks: list[StepMasks] = []

    def launch(self, plan: StepPlan) -> Any:
        number = sum(entry.startswith("launch") for entry in self.log)
        self.log.append(f"launch {number}")
        handle = super().launch(plan)
        wait, draw = handle.wait, handle.draw

        def logged_wait() -> Any:
            self.log.append(f"wait {number}")
            return wait()

        def logged_draw(masks: StepMasks) -> None:
            self.log.append(f"draw {number}")
            self.masks.append(masks)
            draw(masks)

        handle.wait, handle.draw = logged_wait, logged_draw  # type: ignore[method-assign]
        return handle

    def launch_scoring(self, plan: ScoringPlan) -> Any:
        self.log.append("scoring")
        return super().launch_scoring(plan)


def make(
    mask_threads: int = 1, limits: GrammarLimits | None = None, **fields: Any
) -> tuple[Engine, LoggedFake, Int32Array]:
    """An engine with grammars, its runner, and the buffer of masks."""
    tokenizer = ll_tokenizer()
    buffer = np.zeros((4, -(-tokenizer.vocab_size // 32)), dtype=np.int32)
    limits = limits or GrammarLimits()
    config = StructuredConfig(tokenizer="none", mask_threads=mask_threads, limits=limits)
    grammars = Grammars(config, tokenizer, buffer, 4, 0)
    engine, runner = make_engine_over(LoggedFake, grammars=grammars, **fields)
    return engine, runner, buffer


def constrained(handle: int, source: str = ANYTHING, **fields: Any) -> Request:
    grammar = Grammar(source=source, after=fields.pop("after", ()))
    params = SamplingParams(constrained=True)
    return request(handle, PROMPT, grammar=grammar, params=params, **fields)


def test_a_step_without_a_grammar_is_one_launch_ahead_of_the_last_result() -> None:
    engine, runner, _ = make()
    Reader(engine).run(request(0, PROMPT, max_tokens=3, params=SamplingParams()))
    assert runner.log == ["launch 0", "launch 1", "wait 0", "launch 2", "wait 1", "wait 2"]


def test_a_step_with_one_is_drawn_behind_the_last_result_and_the_next_launched() -> None:
    engine, runner, buffer = make()
    reader = Reader(engine)
    engine.submit(FRONTEND, constrained(0, max_tokens=4))
    while not engine.has_work:
        pass
    reader.step()
    assert runner.log == ["launch 0", "draw 0", "launch 1"]
    engine.score(FRONTEND, scoring_request(1))
    reader.step()
    assert runner.log[3:] == ["wait 0", "draw 1", "scoring", "launch 2"]
    assert runner.masks[-1].count == 1
    assert runner.masks[-1].slots.tolist() == [0]
    assert buffer[0].any()
    reader.run()
    assert reader.tokens[0, 0] == reference(PROMPT, 4, (), 0)
    assert reader.finish == {(0, 0): Finish.LENGTH}


def scoring_request(handle: int) -> ScoringRequest:
    return ScoringRequest(
        handle=handle,
        query_token_ids=np.array([1, 2], dtype=np.int32),
        item_token_ids=np.array([3], dtype=np.int32),
        item_lens=np.array([1], dtype=np.int32),
        num_read=np.array([1], dtype=np.int32),
        id_lists=np.array([[3]], dtype=np.int32),
    )


def test_only_rows_that_draw_under_a_grammar_that_has_begun_have_masks() -> None:
    engine, runner, _ = make()
    reader = Reader(engine)
    tokens = reference(PROMPT, 6, (), 0)
    reader.run(constrained(3, max_tokens=1))  # compiled now, so that all three begin together
    runner.masks.clear()
    reader.run(
        constrained(0, max_tokens=6),
        constrained(1, max_tokens=6, after=(tokens[1],)),
        request(2, PROMPT, max_tokens=6, params=SamplingParams()),
    )
    counts = [masks.count for masks in runner.masks]
    begins = tokens.index(tokens[1]) + 1
    assert counts == [1] * begins + [2] * (6 - begins)
    assert all(len(masks.slots) == 3 for masks in runner.masks)
    assert sorted(runner.masks[-1].slots.tolist()) == [-1, 0, 1]
    assert engine.stats().grammars is not None
    assert engine.stats().grammars.num_masks == 1 + sum(counts)  # type: ignore[union-attr]


def test_rows_that_wait_for_their_grammar_share_a_mask_of_all_but_ends() -> None:
    engine, runner, buffer = make()
    reader = Reader(engine)
    some = of_regex("(.|\n)+")
    reader.run(constrained(3, some, max_tokens=1))  # compiled now, so that all begin together
    runner.masks.clear()
    reader.run(*(constrained(i, some, max_tokens=3, after=(1, 1, 1, 1)) for i in range(3)))
    assert [(masks.count, masks.slots.tolist()) for masks in runner.masks] == [(1, [0, 0, 0])] * 3
    bits = np.unpackbits(buffer[0].view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits == 0).tolist() == [EOS]


def test_a_budget_alone_waits_for_no_compile_and_masks_what_ends_it() -> None:
    engine, runner, buffer = make()
    drawn = reference(PROMPT, 6, (), 0)
    budget = ThinkingBudget(num_tokens=3, begin=(1,), end=(drawn[3], drawn[4]), are_open=True)
    params = SamplingParams(constrained=True)
    reader = Reader(engine)
    engine.submit(FRONTEND, request(0, PROMPT, max_tokens=6, params=params, thinking_budget=budget))
    masks: list[list[int]] = []
    while engine.has_work:  # at once
        reader.step()
        if len(runner.masks) > len(masks):
            masks.append(
                [i for i in range(8192) if buffer[0].view(np.uint32)[i >> 5] >> (i & 31) & 1]
            )
    assert [found.count for found in runner.masks] == [0, 0, 0, 1, 1, 0]
    assert masks[3:5] == [[drawn[3]], [drawn[4]]]
    assert reader.tokens[0, 0] == drawn
    assert reader.finish == {(0, 0): Finish.LENGTH}


def test_a_token_that_the_grammar_forbids_ends_its_choice_alone() -> None:
    engine, _, _ = make()
    reader = Reader(engine)
    reader.run(constrained(0, DIGITS, n=2), constrained(1))
    assert {key: end.name for key, end in reader.finish.items()} == {
        (0, 0): "GRAMMAR",
        (0, 1): "GRAMMAR",
        (1, 0): "LENGTH",
    }
    assert reader.tokens[0, 0] == reference(PROMPT, 1, (), 0), "what was drawn is still emitted"
    assert "cannot be followed" in reader.errors[0]
    stats = engine.stats().grammars
    assert stats is not None
    assert (stats.num_errors, stats.num_compiles) == (2, 2)


def test_a_grammar_over_its_limits_is_no_failure_of_the_engine() -> None:
    engine, _, _ = make(limits=GrammarLimits(step_max_items=0))
    reader = Reader(engine)
    reader.run(constrained(0))
    assert reader.finish == {(0, 0): Finish.TOO_COMPLEX}
    assert "Too many items" in reader.errors[0]
    stats = engine.stats().grammars
    assert stats is not None
    assert stats.num_errors == 0


@pytest.mark.parametrize("method", ["fill", "consume"])
def test_an_exception_of_llguidance_loses_no_step(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, runner, _ = make()
    honest, num_calls = getattr(MaskFiller, method), 0

    def explode(self: MaskFiller, wanted: Any, *begun: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise ValueError("bad pointer")
        return honest(self, wanted, *begun)

    monkeypatch.setattr(MaskFiller, method, explode)
    reader = Reader(engine)
    reader.run(
        constrained(0, max_tokens=8), request(1, PROMPT, max_tokens=8, params=SamplingParams())
    )
    assert reader.finish == {(0, 0): Finish.GRAMMAR, (1, 0): Finish.LENGTH}
    assert reader.errors == {0: "the grammar failed: ValueError: bad pointer"}
    assert reader.tokens[1, 0] == reference(PROMPT, 8, (), 0)
    drawn = [entry for entry in runner.log if entry.startswith("draw")]
    # Of four steps were masks asked: when they fail, or what was consumed, one more is launched.
    assert len(drawn) == 4, "every forward got its draw"


def test_a_grammar_that_cannot_be_compiled_ends_its_choices() -> None:
    engine, _, _ = make()
    reader = Reader(engine)
    reader.run(constrained(0, "nonsense", n=3), constrained(1))
    assert [reader.finish[0, choice] for choice in range(3)] == [Finish.GRAMMAR] * 3
    assert reader.errors[0].startswith("the grammar cannot be compiled: ")
    assert reader.finish[1, 0] == Finish.LENGTH


def run_dry(reader: Reader) -> None:
    """Step until nothing but compiles is left."""
    while reader.engine.has_work:
        reader.step()


class SlowCompiles:
    """Lets a test say when compiles end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = threading.Event()
        honest = GrammarCompiler._compile

        def compile_late(compiler: GrammarCompiler, source: str) -> LLMatcher:
            assert self.end.wait(30)
            return honest(compiler, source)

        monkeypatch.setattr(GrammarCompiler, "_compile", compile_late)


def test_a_choice_that_waits_for_its_grammar_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowCompiles(monkeypatch)
    engine, _, _ = make(max_rows=1)
    reader = Reader(engine)
    engine.submit(FRONTEND, constrained(0, n=2, max_tokens=2))
    assert not engine.has_work, "the loop may sleep"
    assert engine.stats().num_waiting == 2
    engine.submit(FRONTEND, request(1, PROMPT, params=SamplingParams()))
    run_dry(reader)
    assert list(reader.finish) == [(1, 0)]
    slow.end.set()
    reader.run()
    assert len(reader.finish) == 3
    assert reader.tokens[0, 1] == reference(PROMPT, 2, (), 1)


@pytest.mark.parametrize("choice_idx", [-1, 0, 1])
def test_choices_are_aborted_while_their_grammar_is_compiled(
    choice_idx: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowCompiles(monkeypatch)
    engine, _, _ = make()
    reader = Reader(engine)
    engine.submit(FRONTEND, constrained(0, n=2, max_tokens=2))
    engine.abort(FRONTEND, 0, choice_idx)
    reader.step()
    aborted = [0, 1] if choice_idx == -1 else [choice_idx]
    assert reader.finish == {(0, choice): Finish.ABORT for choice in aborted}
    assert not engine.has_work
    assert engine.stats().num_waiting == 2 - len(aborted)
    engine.submit(FRONTEND, request(1, PROMPT, params=SamplingParams()))
    run_dry(reader)
    assert reader.finish.pop((1, 0)) == Finish.LENGTH, "who is gone is not waited for"
    slow.end.set()
    reader.run()
    for choice in {0, 1} - set(aborted):
        assert reader.tokens[0, choice] == reference(PROMPT, 2, (), choice)


def test_a_choice_that_ended_after_its_launch_has_no_mask() -> None:
    """It stopped in the step before, which was read back while the forward ran."""
    engine, runner, _ = make()
    stop = reference(PROMPT, 3, (), 0)[2]
    params = SamplingParams(constrained=True, stop_token_ids=(stop,))
    grammar = Grammar(source=ANYTHING)
    Reader(engine).run(request(0, PROMPT, params=params, grammar=grammar))
    assert [masks.count for masks in runner.masks] == [1, 1, 1, 0]
    assert runner.masks[-1].slots.tolist() == [-1]


def test_choices_that_ended_leave_their_compile_to_others() -> None:
    engine, _, _ = make(mask_threads=2)
    reader = Reader(engine)
    for handle in range(SHARED + 2):
        reader.run(constrained(handle, max_tokens=1))
    stats = engine.stats().grammars
    assert stats is not None
    assert (stats.num_compiles, stats.num_cache_hits) == (1, SHARED + 1)


def test_matchers_of_a_batch_that_ended_are_freed_over_later_steps() -> None:
    engine, _, _ = make()
    reader = Reader(engine)
    reader.run(*(constrained(handle, max_tokens=2) for handle in range(4)))
    ended = engine._parts.grammars._ended  # type: ignore[union-attr]
    assert len(ended) == 4, "none held up the last outputs"
    held = [weakref.ref(state) for state in ended]
    reader.run(constrained(4, max_tokens=3))
    assert [ref() for ref in held] == [None] * 4


def test_a_batch_with_a_schema_a_row_finds_its_grammars_again() -> None:
    awaited = AwaitedGrammars(StructuredConfig(tokenizer="none"), ll_tokenizer(), 96, 1)
    for _ in range(2):
        for number in range(2 * 96):
            awaited.compiler.compile(of_regex(f"a{number}")).matcher.result()
    assert awaited.compiler.num_compiles == 2 * 96


def test_what_ended_is_forgotten() -> None:
    engine, _, _ = make()
    Reader(engine).run(*(constrained(handle, n=2) for handle in range(3)))
    grammars = engine._parts.grammars
    assert grammars is not None
    assert not grammars._matchers
    assert not grammars._awaited.num_waiting
    assert not grammars._awaited._held
    assert not grammars._plain._matchers


@pytest.mark.parametrize("seed", range(6))
def test_aborts_and_preemptions_meet_steps_that_were_launched_ahead(seed: int) -> None:
    """Rows with grammars and without, too few blocks for all, and scoring in between."""
    engine, _, _ = make(max_rows=4, num_blocks=16)
    rng, reader, live = random.Random(seed), Reader(engine), dict[int, list[int]]()
    for handle, prompt in enumerate(prompts(rng, 24, 20)):
        live[handle] = prompt
        grammar = Grammar(source=ANYTHING) if rng.random() < 0.6 else None
        params = SamplingParams(constrained=grammar is not None, stop_token_ids=(0,))
        n = rng.choice([1, 2])
        engine.submit(FRONTEND, request(handle, prompt, n=n, grammar=grammar, params=params))
        if rng.random() < 0.3:
            engine.score(FRONTEND, scoring_request(1000 + handle))
        if rng.random() < 0.5:
            engine.abort(FRONTEND, rng.choice(list(live)), rng.choice([-1, 0, 1]))
        for _ in range(rng.randrange(4)):
            reader.step()
        engine.check()
    reader.run()
    assert engine.stats().num_preemptions > 0
    for (handle, choice), tokens in reader.tokens.items():
        if handle < 1000:
            whole = reference(live[handle], 10, (0,), choice)
            is_aborted = reader.finish[handle, choice] == Finish.ABORT
            assert tokens == (whole[: len(tokens)] if is_aborted else whole)
    grammars = engine._parts.grammars
    assert grammars is not None
    assert not grammars._matchers
    assert not reader.errors
