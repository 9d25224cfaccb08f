"""Commands over an engine whose draws depend on every page it reads."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from engine.contracts.control import (
    MEMORY_PARTS,
    AbortRequests,
    AnyCommand,
    EngineState,
    FlushPrefixes,
    MemoryPart,
    Pause,
    PauseMode,
    Resume,
    RunWeights,
    Sleep,
    WakeUp,
)
from engine.contracts.weights import (
    AnyWeightCommand,
    BeginUpdate,
    FinishUpdate,
    FolderSource,
    PassTensors,
    ReceiveTensors,
    SetVersion,
    WeightTarget,
    WeightUpdateError,
)
from engine.errors import ControlError
from engine.messages.request import PromptLogprobsParams
from engine.messages.step_output import Finish
from engine.planning.drafting import DraftRules
from sampling.params import SamplingParams
from tests.engine.control.loop import Loop
from tests.engine.paged_fake import reference
from tests.engine.traffic import FRONTEND, prompts

LONG = {"params": SamplingParams(), "max_tokens": 8}


@pytest.mark.parametrize("seed", range(8))
def test_what_a_pause_keeps_draws_the_same_tokens(seed: int) -> None:
    """Whatever is paused, forgotten and flushed while rows come and go, in memory that is short."""
    rng = random.Random(seed)
    loop, wanted = Loop(num_blocks=rng.choice([18, 200]), budget=rng.choice([4, 16])), {}
    for handle, prompt in enumerate(prompts(rng, 25, 40)):
        n, max_tokens = rng.choice([1, 1, 3]), rng.randrange(1, 20)
        loop.submit(handle, prompt, n=n, max_tokens=max_tokens, emit_interval=rng.choice([1, 5]))
        for choice in range(n):
            wanted[handle, choice] = reference(prompt, max_tokens, (0,), choice)
        loop.rounds(rng.randrange(4))
        if rng.random() < 0.4:
            loop.send(Pause(mode="keep", forgets=rng.random() < 0.5, refuses=False))
            loop.rounds(rng.randrange(5))
            if rng.random() < 0.5:
                loop.send(FlushPrefixes(restarts=True))
            loop.send(Resume())
    loop.settle()
    assert loop.inbox.tokens == wanted
    assert all(reply.error is None for reply in loop.replies)
    assert not loop.commands.state.is_held


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_no_step_is_planned_while_the_engine_is_paused(mode: PauseMode) -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.rounds(2)
    loop.send(Pause(mode=mode))
    assert loop.last().state.is_paused
    assert loop.commands.state.is_paused
    steps = loop.engine.stats().num_steps
    loop.submit(2, [5, 6], **LONG)
    loop.settle()
    assert loop.engine.stats().num_steps == steps
    drawn = len(loop.inbox.tokens[1, 0])
    if mode == "wait":
        assert (drawn, loop.inbox.finish[1, 0]) == (8, Finish.LENGTH)
    elif mode == "abort":
        assert 0 < drawn < 8
        assert loop.inbox.finish[1, 0] == Finish.CANCELED
    else:
        assert 0 < drawn < 8
        assert (1, 0) not in loop.inbox.finish
    assert loop.replies[-1].count == (mode == "keep")
    loop.send(Resume())
    loop.settle()
    assert loop.inbox.tokens[2, 0] == reference([5, 6], 8, (), 0)
    if mode != "abort":
        assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)


def test_requests_that_come_while_others_end_wait_for_the_resume() -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.round()
    loop.send(Pause(mode="wait", refuses=False))
    loop.round()
    loop.submit(2, [5, 6], n=2, **LONG)
    loop.score(3, query_len=6)
    loop.submit(4, [9], **LONG)
    loop.engine.abort(FRONTEND, 4)
    loop.engine.abort(FRONTEND, 2, 0)
    assert loop.last().error is None
    assert set(loop.inbox.finish) == {(1, 0), (4, 0), (2, 0)}
    assert not loop.scores
    loop.send(Resume())
    loop.settle()
    assert loop.inbox.tokens[2, 1] == reference([5, 6], 8, (), 1)
    assert loop.scores == [Finish.LENGTH]


def test_a_resume_ends_a_pause_that_waits() -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.round()
    loop.send(Pause(mode="wait"))
    loop.round()
    loop.submit(2, [5, 6], **LONG)
    loop.send(Resume())
    assert [reply.code for reply in loop.replies] == ["resumed", None]
    loop.settle()
    assert len(loop.inbox.tokens[1, 0]) == len(loop.inbox.tokens[2, 0]) == 8


HOLDS: dict[str, list[AnyCommand]] = {
    "paused": [Pause(mode="keep", refuses=False)],
    "asleep": [Pause(mode="keep", for_sleep=True), Sleep()],
    "cache-asleep": [Sleep(parts=("kv_cache",))],
    "lacks-weights": [Sleep(keeps_weights=False), WakeUp()],
}


@pytest.mark.parametrize("hold", HOLDS)
def test_a_pause_of_an_engine_that_is_held_waits_for_nothing(hold: str) -> None:
    """Nothing runs there that could end, and what ends the hold would wait behind the pause.

    The reply counts the requests that are kept, so whoever needs them ended can tell.
    """
    loop = Loop()
    running = hold in ("paused", "asleep")
    if running:
        loop.submit(1, [5, 6, 7], **LONG)
        loop.rounds(2)
    for command in HOLDS[hold]:
        loop.send(command)
    loop.settle()
    if not running:
        loop.submit(1, [5, 6, 7], **LONG)
    steps, num_replies = loop.engine.stats().num_steps, len(loop.replies)
    loop.send(Pause(mode="wait"))
    loop.rounds(2)
    assert [(reply.error, reply.count) for reply in loop.replies[num_replies:]] == [(None, 1)]
    loop.send(Resume())
    loop.rounds(2)
    assert loop.replies[-1].error is None
    state = loop.commands.state
    assert not state.is_paused
    if hold == "paused":
        loop.settle()
        assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)
        return
    loop.rounds(5)
    assert loop.engine.stats().num_steps == steps, "a resume ends no sleep"
    loop.send(WakeUp())
    if state.lacks_weights:
        loop.send(RunWeights(weights=FinishUpdate()))
    assert loop.last().state.is_held is False
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)


def test_a_resume_right_behind_a_pause_of_an_engine_that_sleeps_starts_no_step() -> None:
    """Before its outputs are collected, so that the pause has begun and is not done."""
    loop = Loop()
    for handle in (1, 2):
        loop.submit(handle, [5, 6, 7], **LONG)
    loop.rounds(2)
    for command in HOLDS["asleep"]:
        loop.send(command)
    loop.settle()
    steps = loop.engine.stats().num_steps
    loop.engine.abort(FRONTEND, 1)
    assert not loop.engine.held.is_quiet
    loop.send(Pause(mode="wait"))
    loop.commands.run_due()
    loop.send(Resume())
    loop.rounds(5)
    assert loop.engine.stats().num_steps == steps
    assert loop.commands.state.asleep
    assert [reply.error for reply in loop.replies] == [None] * 4
    loop.send(WakeUp())
    assert loop.last().state == EngineState()
    assert loop.inbox.tokens[2, 0] == reference([5, 6, 7], 8, (), 0)


@pytest.mark.parametrize("forgets", [False, True])
def test_keys_are_kept_or_computed_again_as_asked(forgets: bool) -> None:
    prompt = list(range(1, 13))
    loop = Loop(budget=64)
    loop.submit(1, prompt, **LONG)
    loop.rounds(3)
    loop.send(Pause(mode="keep", forgets=forgets))
    assert loop.last().count == 1
    assert len(loop.inbox.tokens[1, 0]) >= 1
    loop.send(Resume())
    loop.settle()
    assert loop.inbox.tokens[1, 0] == reference(prompt, 8, (), 0)
    computed = len(prompt) * (1 + forgets)
    assert loop.engine.stats().prompt_tokens_computed == computed


def test_a_flush_lets_no_later_request_find_a_prefix() -> None:
    prompt = list(range(1, 13))
    loop = Loop(budget=64)
    loop.submit(1, prompt, max_tokens=1, params=SamplingParams())
    loop.settle()
    loop.submit(2, prompt, max_tokens=1, params=SamplingParams())
    loop.settle()
    assert loop.inbox.cached[2] > 0
    loop.send(FlushPrefixes())
    assert loop.last().error is None
    loop.submit(3, prompt, max_tokens=1, params=SamplingParams())
    loop.settle()
    assert loop.inbox.cached[3] == 0


def test_a_flush_is_refused_while_choices_hold_blocks() -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.round()
    loop.send(FlushPrefixes())
    assert loop.last().code == "busy"
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0), "it goes on by itself"


def test_a_resume_without_a_pause_is_refused() -> None:
    loop = Loop()
    loop.send(Resume())
    assert loop.last().code == "not_paused"


def test_scoring_begins_again_where_keys_are_forgotten() -> None:
    loop = Loop(budget=4)
    loop.score(1, query_len=16)
    loop.rounds(2)
    assert loop.engine.held.num_holding == 1
    loop.send(Pause(mode="keep"))
    loop.settle()
    assert loop.engine.held.num_holding == 0
    assert not loop.scores
    loop.send(Resume())
    loop.settle()
    assert loop.scores == [Finish.LENGTH]


def test_requests_are_aborted_by_name_at_once() -> None:
    loop = Loop(max_rows=1)
    for handle, name in enumerate(("cmpl-a", "cmpl-b", "c-1")):
        loop.submit(handle, [5, 6], name=name, **LONG)
    loop.score(7, query_len=4)
    loop.rounds(2)
    loop.send(AbortRequests(names=("a", "c-1", "unknown")))
    assert loop.replies[-1].count == 2
    loop.settle()
    assert loop.inbox.finish[0, 0] == loop.inbox.finish[2, 0] == Finish.CANCELED
    assert loop.inbox.finish[1, 0] == Finish.LENGTH
    assert loop.scores == [Finish.LENGTH]


def test_all_requests_are_aborted_also_behind_a_pause_that_waits() -> None:
    loop = Loop()
    loop.submit(1, [5, 6], **LONG)
    loop.score(2, query_len=4)
    loop.round()
    loop.send(Pause(mode="wait"))
    loop.round()
    loop.send(AbortRequests())
    loop.settle()
    assert [reply.error for reply in loop.replies] == [None, None]
    assert loop.replies[0].count >= 1
    assert loop.inbox.finish[1, 0] == Finish.CANCELED
    assert loop.commands.state.is_paused


def change(loop: Loop, version: str, num_updates: int) -> None:
    """Change the weights between two steps, as an update of them does."""
    loop.send(Pause(mode="keep", forgets=False))
    loop.settle()
    loop.engine.held.change_weights(version, num_updates)
    loop.send(Resume())


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_no_prefix_of_other_weights_is_found(prefix_caching: bool) -> None:
    """By what waited as little as by what comes after; what has drawn keeps its own keys."""
    prompt = list(range(1, 13))
    loop = Loop(budget=64, max_rows=2, prefix_caching=prefix_caching)
    for handle in (1, 2, 3):
        loop.submit(handle, prompt, n=1 + (handle == 2), **LONG)
    loop.score(8, query_len=12)
    loop.rounds(2)
    change(loop, "v1", 1)
    loop.submit(4, prompt, **LONG)
    loop.score(9, query_len=12)
    found = loop.engine.stats().prefix_cache_hits
    keys_before = set(loop.runner.links)
    assert keys_before
    loop.settle()
    assert loop.inbox.cached[3] == 0 or prefix_caching
    versions = loop.inbox.versions
    assert versions[1, 0] == ["default", "v1"]
    assert versions[4, 0] == ["v1"]
    hits = loop.engine.stats().prefix_cache_hits - found
    # Of what came under v1: the first to compute the prompt finds nothing, others find its blocks.
    assert (hits > 0) == prefix_caching
    assert loop.scores == [Finish.LENGTH] * 2


def test_a_salt_does_not_name_prefixes_of_other_weights() -> None:
    prompt = list(range(1, 13))
    loop = Loop(budget=64)
    loop.submit(1, prompt, cache_salt="1/x")
    loop.settle()
    change(loop, "v1", 1)
    loop.submit(2, prompt, cache_salt="x")
    loop.settle()
    assert loop.inbox.cached[2] == 0


def test_a_prompt_is_never_computed_by_two_weights() -> None:
    loop = Loop(budget=4)
    prompt = list(range(1, 13))
    loop.submit(1, prompt, **LONG)
    loop.rounds(2)
    assert loop.engine.held.num_holding == 1
    change(loop, "v1", 1)
    loop.settle()
    assert loop.engine.stats().prompt_tokens_computed > len(prompt)
    assert loop.inbox.versions[1, 0] == ["v1"]


def test_an_update_changes_version_tag_and_count() -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.rounds(2)
    for command in (BeginUpdate(), FinishUpdate(version="7")):
        loop.send(RunWeights(weights=command))
        loop.rounds(3)
    state = loop.commands.state
    assert (state.weight_version, state.num_updates) == ("7", 1)
    loop.send(RunWeights(weights=FinishUpdate()))
    loop.send(RunWeights(weights=SetVersion(version="9")))
    loop.settle()
    later = loop.commands.state
    assert (later.weight_version, later.num_updates) == ("9", 2)
    assert "" != state.weight_tag != later.weight_tag
    assert loop.inbox.versions[1, 0][:2] == ["default", "7"]
    assert loop.inbox.tags[1, 0][:2] == ["", state.weight_tag]
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0), "it went on by itself"
    for version in ("8", " 8", "08", "-1"):
        loop.send(RunWeights(weights=FinishUpdate(version=version)))
        assert loop.last().code == "version_backwards"
        assert loop.commands.state == later
        assert FinishUpdate(version=version) not in loop.runner.weight_commands
    loop.send(RunWeights(weights=FinishUpdate()))
    loop.settle()
    assert loop.commands.state.weight_version == "10", "not 3, the number of updates"


def test_no_version_is_below_a_number_that_was_before_a_name() -> None:
    """Nor one that is set, within an update or beside."""
    loop = Loop()
    finish(loop, version="7")
    loop.send(RunWeights(weights=BeginUpdate()))
    loop.send(RunWeights(weights=SetVersion(version="name")))
    state = loop.last().state
    for command in (SetVersion(version="5"), FinishUpdate(version="6")):
        loop.send(RunWeights(weights=command))
        assert loop.last().code == "version_backwards"
        assert (
            loop.replies[-1].error
            == f"weight version {command.version} is before 7, the largest so far"
        )
        assert loop.commands.state == state
        assert command not in loop.runner.weight_commands
    loop.send(RunWeights(weights=FinishUpdate(version="7")))
    assert loop.last().state.weight_version == "7", "refused for its version, an update goes on"
    assert finish(loop, version="other").weight_version == "other"
    assert finish(loop).weight_version == "8"


def test_a_version_that_came_with_tensors_is_that_of_the_update() -> None:
    """Where its end names none; the last that came counts, and none of an update before."""
    loop = Loop()

    def update(*sent: str | None, end: str | None = None) -> str:
        parts = [ReceiveTensors(source=FolderSource(path="x"), version=each) for each in sent]
        commands: list[AnyWeightCommand] = [BeginUpdate(), *parts, FinishUpdate(version=end)]
        for command in commands:
            loop.send(RunWeights(weights=command))
            state = loop.last().state
        return state.weight_version

    assert update("4", None, "5", None) == "5"
    assert update("6", end="7") == "7"
    assert update("8", None) == "8"
    assert update(None) == "9"
    loop.send(RunWeights(weights=BeginUpdate()))
    loop.send(RunWeights(weights=ReceiveTensors(source=FolderSource(path="x"), version="8")))
    assert loop.last().code == "version_backwards"


def test_tensors_that_are_refused_before_they_are_asked_for_are_received() -> None:
    """Whoever broadcasts them does not know yet that they are refused."""
    loop, source = Loop(), FolderSource(path="x")
    finish(loop, version="7")
    for version, refusal in (("6", "version_backwards"), ("8", "asleep")):
        if refusal == "asleep":
            loop.send(Sleep())
        loop.send(RunWeights(weights=ReceiveTensors(source=source, version=version)))
        assert loop.last().code == refusal
        assert loop.runner.weight_commands.pop() == PassTensors(source=source)


@pytest.mark.parametrize("when", ["computing", "waiting"])
def test_parts_of_a_prompt_s_report_begin_again_with_other_weights(when: str) -> None:
    """Those of before were sent; a report of both would be of no weights."""
    loop, prompt = Loop(budget=4), list(range(1, 24))
    wanted = PromptLogprobsParams(start=2, by_part=True)
    loop.submit(1, prompt, **LONG, prompt_logprobs=wanted)
    loop.rounds(4)
    if when == "waiting":
        loop.send(Pause(mode="keep"))
        loop.last()
    loop.send(RunWeights(weights=FinishUpdate()))
    if when == "waiting":
        loop.send(Resume())
    loop.settle()
    parts = [(each.start, each.logprobs.ranks.tolist()) for each in loop.inbox.prompt_parts[1]]
    first, again = [i for i, (start, _) in enumerate(parts) if start == 2]
    for each in (parts[first:again], parts[again:]):
        ranks = [rank for _, part in each for rank in part]
        assert ranks == prompt[2 : 2 + len(ranks)]
    start, ranks = parts[-1]
    assert start + len(ranks) == len(prompt)


def test_an_update_that_wrote_nothing_changes_nothing() -> None:
    """Of tensors that the model does not load."""
    loop = Loop(drafting=DRAFTING)
    before = loop.commands.state
    loop.runner.num_written = 0
    assert finish(loop, version="7", drafter="off") == before
    loop.runner.num_written = 1
    assert finish(loop, version="6").weight_version == "6", "7 was the version of no weights"


DRAFTING = DraftRules(num_tokens=3, max_rows=9, has_cache=True, draws_differ=True)
PINNED = SamplingParams(seed=1)


def finish(loop: Loop, *, target: WeightTarget = "model", **fields: Any) -> EngineState:
    for command in (BeginUpdate(target=target), FinishUpdate(**fields)):
        loop.send(RunWeights(weights=command))
    while loop.commands.is_due:
        loop.round()
    return loop.replies[-1].state


def test_a_drafter_s_update_leaves_the_version_alone() -> None:
    """Drafts decide which tokens a seed draws, and the drafter's keys are in the same blocks."""
    prompt = list(range(1, 13))
    loop = Loop(drafting=DRAFTING)
    loop.submit(1, prompt, **LONG)
    loop.settle()
    loop.runner.has_draft = True
    loop.send(RunWeights(weights=SetVersion(version="9")))
    state = finish(loop, target="draft", version="7")
    assert (state.weight_version, state.num_updates, state.drafter) == ("9", 1, "current")
    assert state.weight_tag
    loop.submit(2, prompt, **LONG)
    loop.settle()
    assert loop.inbox.cached[2] == 0


@pytest.mark.parametrize(
    ("begun", "refused", "version"), [("model", "draft", "7"), ("draft", "model", "default")]
)
def test_an_update_that_may_not_begin_leaves_the_one_in_progress_as_it_was(
    begun: WeightTarget, refused: WeightTarget, version: str
) -> None:
    loop = Loop(drafting=DRAFTING)
    loop.send(RunWeights(weights=BeginUpdate(target=begun)))
    loop.last()
    loop.runner.refusal = WeightUpdateError("an update is in progress", "update_in_progress")
    loop.send(RunWeights(weights=BeginUpdate(target=refused)))
    assert loop.last().code == "update_in_progress"
    loop.runner.refusal = None
    loop.send(RunWeights(weights=FinishUpdate(version="7")))
    assert loop.last().state.weight_version == version


@pytest.mark.parametrize("params", [PINNED, SamplingParams()])
def test_a_drafter_is_off_until_its_weights_are_updated(params: SamplingParams) -> None:
    loop = Loop(drafting=DRAFTING, num_blocks=200)
    wish = {"params": params, "max_tokens": 30}

    def drafted(handle: int) -> int:
        loop.submit(handle, [3, 3], **wish)
        loop.settle()
        stats = loop.engine.stats().drafts
        assert stats is not None
        return stats.num_draft_tokens

    loop.submit(1, [3, 3], **wish)
    loop.rounds(4)
    assert loop.commands.state.drafter == "current"
    assert finish(loop, drafter="off").drafter == "off"
    stats = loop.engine.stats().drafts
    assert stats is not None
    before = stats.num_draft_tokens
    assert before > 0
    assert drafted(2) == before, "neither what runs nor what comes drafts"
    assert loop.inbox.tokens[1, 0] == loop.inbox.tokens[2, 0] == reference([3, 3], 30, (), 0)
    assert finish(loop).drafter == "off", "an update without its weights leaves it off"
    assert drafted(3) == before
    loop.runner.has_draft = True
    assert finish(loop, target="draft").drafter == "current"
    assert drafted(4) > before
    loop.runner.has_draft = False
    assert finish(loop).drafter == "stale"
    assert loop.inbox.tokens[4, 0] == reference([3, 3], 30, (), 0)


def test_there_must_be_a_drafter_to_switch_off() -> None:
    loop = Loop(drafting=replace(DRAFTING, has_cache=False))
    finish(loop, drafter="off")
    assert loop.last().code == "no_drafter"
    assert loop.commands.state.num_updates == 0
    assert finish(loop).drafter == "none"


def test_a_refused_update_leaves_everything_as_it_was() -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.rounds(2)
    loop.runner.refusal = WeightUpdateError("no update was begun", "no_update")
    loop.send(RunWeights(weights=FinishUpdate(version="7")))
    assert loop.last().code == "no_update"
    assert loop.commands.state == EngineState()
    assert loop.inbox.versions[1, 0] == ["default"]
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_what_sleeps_goes_on_where_it_was_kept(mode: PauseMode) -> None:
    prompt = list(range(1, 13))
    loop = Loop(budget=64)
    loop.submit(1, prompt, **LONG)
    loop.submit(2, prompt, **LONG)
    loop.rounds(3)
    loop.send(Pause(mode=mode, for_sleep=True))
    loop.send(Sleep())
    state = loop.last().state
    assert state.asleep == ("weights", "kv_cache")
    assert loop.runner.asleep == {"weights", "kv_cache"}
    loop.send(RunWeights(weights=FinishUpdate()))
    assert loop.last().code == "asleep"
    loop.submit(3, prompt, **LONG)
    loop.send(WakeUp(parts=("weights",)))
    state = loop.last().state
    assert (state.asleep, state.is_paused) == (("kv_cache",), True), "it resumes when all is awake"
    loop.settle()
    assert (3, 0) not in loop.inbox.finish, "nothing runs while a part sleeps"
    loop.send(WakeUp(parts=("kv_cache",)))
    assert loop.last().state == EngineState()
    for handle in (1, 2, 3) if mode == "keep" else (3,):
        assert loop.inbox.tokens[handle, 0] == reference(prompt, 8, (), 0)


@pytest.mark.parametrize("when", ["before", "asleep"])
def test_a_pause_outlasts_a_sleep(when: str) -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.rounds(2)
    commands: list[AnyCommand] = [Pause(mode="keep", for_sleep=True), Sleep()]
    commands.insert(0 if when == "before" else 2, Pause(mode="keep"))
    for command in (*commands, WakeUp()):
        loop.send(command)
    state = loop.last().state
    assert (state.asleep, state.is_paused) == ((), True)
    assert (1, 0) not in loop.inbox.finish
    loop.send(Resume())
    assert loop.last().error is None
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_pause_that_outlasts_a_sleep_refuses_what_it_did(refuses: bool) -> None:
    """While the engine sleeps, the sleep says what becomes of requests that come."""
    loop = Loop()
    loop.send(Pause(mode="keep", refuses=refuses))
    loop.send(Pause(for_sleep=True, refuses=not refuses))
    loop.send(Sleep())
    assert loop.last().state.refuses != refuses
    loop.send(WakeUp(parts=("weights",)))
    assert loop.last().state.refuses != refuses
    loop.send(WakeUp())
    state = loop.last().state
    assert (state.is_paused, state.refuses) == (True, refuses)


@pytest.mark.parametrize("for_sleep", [False, True])
def test_a_resume_while_the_engine_sleeps_holds_from_its_waking(for_sleep: bool) -> None:
    """Some trainers resume before they have the cache's memory taken again."""
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.rounds(2)
    for command in (Pause(mode="keep", for_sleep=for_sleep), Sleep(), Resume()):
        loop.send(command)
    state = loop.last().state
    assert (state.is_paused, state.is_held) == (False, True)
    loop.send(Resume())
    assert loop.last().code == "not_paused"
    loop.send(WakeUp())
    assert loop.last().state == EngineState()
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)


def test_a_sleep_that_gives_nothing_back_ends_too() -> None:
    loop = Loop()
    for parts in (MEMORY_PARTS, ()):
        loop.send(Pause(for_sleep=True))
        assert loop.last().state.is_paused
        loop.send(WakeUp(parts=parts))
        assert loop.last().state == EngineState()


def test_sleep_is_refused_while_requests_have_not_ended() -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.rounds(2)
    loop.send(Sleep())
    assert loop.last().code == "busy"
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)
    loop.send(Sleep(parts=("kv_cache",)))
    assert loop.last().state.refuses
    loop.send(WakeUp())
    assert loop.last().state == EngineState()


def test_weights_that_were_let_go_must_all_be_written_again() -> None:
    loop = Loop()
    loop.send(Pause(for_sleep=True))
    loop.send(Sleep(keeps_weights=False))
    loop.send(WakeUp())
    assert loop.last().state == EngineState(lacks_weights=True, refuses=True)
    loop.submit(1, [5, 6], **LONG)
    loop.runner.num_lacking = 1
    loop.send(RunWeights(weights=FinishUpdate()))
    assert loop.last().state.lacks_weights
    assert (1, 0) not in loop.inbox.finish
    loop.runner.num_lacking = 0
    loop.send(RunWeights(weights=FinishUpdate()))
    assert not loop.last().state.is_held
    assert loop.inbox.versions[1, 0] == ["2"]


@pytest.mark.parametrize("parts", [("weights", "kv_cache"), ("weights",)])
def test_weights_that_sleep_on_the_host_are_let_go(parts: tuple[MemoryPart, ...]) -> None:
    loop = Loop()
    loop.send(Sleep())
    assert not loop.last().state.lacks_weights
    loop.send(Sleep(parts=("kv_cache",), keeps_weights=False))
    assert not loop.last().state.lacks_weights
    loop.send(Sleep(parts=parts, keeps_weights=False))
    assert loop.last().state.lacks_weights
    loop.send(Sleep())
    assert loop.last().state.lacks_weights, "what is gone is not kept"
    assert loop.runner.given_back == [
        (("weights", "kv_cache"), True),
        ((), False),
        (("weights",), False),
        ((), True),
    ]
    loop.send(WakeUp())
    assert loop.last().state == EngineState(lacks_weights=True, refuses=True)


def test_only_a_command_about_weights_has_their_reply() -> None:
    loop = Loop()
    loop.send(RunWeights(weights=FinishUpdate()))
    assert loop.last().weights is not None
    loop.send(Pause())
    assert loop.last().weights is None


def test_memory_that_cannot_be_given_back_is_refused() -> None:
    loop = Loop()
    loop.runner.refusal = ControlError("no", "no_sleep")
    loop.send(Sleep(parts=("kv_cache",)))
    assert loop.last().code == "no_sleep"
    assert loop.commands.state == EngineState()


def test_an_engine_that_has_no_room_to_wake_up_sleeps_on() -> None:
    loop = Loop()
    loop.submit(1, [5, 6, 7], **LONG)
    loop.rounds(2)
    for command in HOLDS["asleep"]:
        loop.send(command)
    asleep = loop.last().state
    loop.runner.refusal = ControlError("no room", "no_memory")
    loop.send(WakeUp())
    assert loop.last().code == "no_memory"
    assert loop.commands.state == asleep
    assert loop.runner.asleep == set(MEMORY_PARTS)
    assert (1, 0) not in loop.inbox.finish
    loop.runner.refusal = None
    loop.send(WakeUp())
    assert loop.last().state == EngineState()
    assert loop.inbox.tokens[1, 0] == reference([5, 6, 7], 8, (), 0)


def test_weights_that_could_not_be_let_go_are_not_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()

    def refuse(*_: object, **__: object) -> None:
        raise ControlError("no", "no_sleep")

    monkeypatch.setattr(loop.runner, "give_back", refuse)
    loop.send(Sleep(keeps_weights=False))
    assert loop.last().code == "no_sleep"
    assert not loop.commands.state.lacks_weights
    assert not loop.runner.weight_commands
