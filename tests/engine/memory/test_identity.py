"""What layers keep, through the whole engine: replies are those of one pass over the text.

However a text is chunked, preempted, restored from a snapshot, verified or mixed with others. The
toy model's states are exact, so that any wrong one shows.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from engine.messages.request import PromptLogprobsParams
from engine.messages.step_output import Finish, PromptLogprobs
from engine.planning import row_snapshots
from tests.engine.memory.toy import VOCAB, reference
from tests.engine.memory.toy_engine import (
    BLOCK_SIZE,
    LOGPROB_ERROR,
    Rule,
    Serve,
    Server,
    accepted,
    mixed,
    refused,
    texts,
    toy_server,
)

RULES: dict[str, Rule | None] = {
    "plain": None,
    "accepted": accepted,
    "refused": refused,
    "mixed": mixed,
}
pytestmark = pytest.mark.usefixtures("short_intervals")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    return partial(toy_server, monkeypatch)


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replies of a few tokens make snapshots too."""
    monkeypatch.setattr(row_snapshots, "REPLY_TOKENS", 8)


def run_all(server: Server, prompts: list[list[int]], steps_between: int = 1) -> None:
    """Submit prompts with steps between them, and check every reply."""
    for prompt in prompts:
        server.submit(prompt)
        for _ in range(steps_between):
            server.step()
    server.run()


@pytest.mark.parametrize("cut", [*range(1, 12), 16, 23])
def test_a_prompt_may_be_cut_anywhere(serve: Serve, cut: int) -> None:
    server = serve(max_step_tokens=cut, max_rows=1)
    for length in (1, 2, 7, 8, 9, 12, 21):
        server.ask(np.random.default_rng(length).integers(0, VOCAB, length).tolist(), 3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk", [1, 6])
def test_a_prompt_that_begins_as_one_before_is_restored(
    serve: Serve, rule: str, chunk: int
) -> None:
    """By whole blocks, one token less or more, and by what a step of drafts brings more."""
    server = serve(rule=RULES[rule], chunk=chunk, max_step_tokens=11)
    multiple = int(np.lcm(BLOCK_SIZE, chunk))
    base = np.random.default_rng(1).integers(0, VOCAB, 48).tolist()
    server.ask(base, 4)
    for length in (8, 24, 36):
        other = np.random.default_rng(length).integers(0, VOCAB, 9).tolist()
        first = server.ask(base[:length] + other)
        again = server.ask(base[:length] + other[::-1])  # where the first left what was known
        known = min(length // multiple * multiple, length)
        assert first.num_cached <= known
        assert again.num_cached == known
        for more in (-1, 0, 1, 4):  # the prompt itself, longer and shorter
            prompt = (base[:length] + other)[: length + 4 + more]
            reply = server.ask(prompt)
            assert reply.num_cached % multiple == 0


@pytest.mark.parametrize("rule", RULES)
def test_turns_of_a_conversation_go_on_from_replies(serve: Serve, rule: str) -> None:
    """A reply makes snapshots too, which are found by what was generated."""
    server = serve(rule=RULES[rule])
    text = np.random.default_rng(3).integers(0, VOCAB, 6).tolist()
    for turn in range(4):
        reply = server.ask(text, 18)
        assert turn == 0 or reply.num_cached >= len(text) - 5 - 16
        assert turn == 0 or reply.num_cached > len(text) - 5 - 18
        text = text + reply.tokens + np.random.default_rng(turn).integers(0, VOCAB, 5).tolist()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(2))
def test_strangers_in_one_batch_are_as_alone(serve: Serve, rule: str, seed: int) -> None:
    """Rows of all kinds in a step, that come and go and take each other's places."""
    prompts = texts(12, seed)
    run_all(serve(rule=RULES[rule]), prompts)
    run_all(serve(rule=RULES[rule], max_step_tokens=9), prompts[::-1], steps_between=3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_snapshots", [0, 3, 30])
def test_preempted_choices_go_on_as_if_they_were_not(
    serve: Serve, rule: str, num_snapshots: int
) -> None:
    server = serve(rule=RULES[rule], num_blocks=36, num_snapshots=num_snapshots)
    for prompt in texts(8, seed=4, longest=30):
        server.submit(prompt, max_tokens=24)
    server.run()
    assert server.engine.stats().num_preemptions > 0


@pytest.mark.parametrize("rule", RULES)
def test_a_choice_that_stops_leaves_nothing_in_its_row(serve: Serve, rule: str) -> None:
    """It was planned once more; its row and its snapshots have a new owner in the step after."""
    server = serve(rule=RULES[rule], max_rows=2, num_snapshots=3)
    stops = {"stop_token_ids": tuple(range(0, VOCAB, 4))}
    for prompt in texts(24, seed=5, longest=24):
        server.submit(prompt, 30, params=stops)
        server.step()
    server.run()
    ends = [reply.finish for reply in server.replies.values()]
    assert ends.count(Finish.STOP) > 12


@pytest.mark.parametrize("rule", RULES)
def test_choices_are_aborted_at_any_time(serve: Serve, rule: str) -> None:
    server, rng = serve(rule=RULES[rule], max_rows=3, num_snapshots=4), np.random.default_rng(6)
    for prompt in texts(20, seed=6):
        handle = server.submit(prompt)
        if rng.random() < 0.4:
            server.engine.abort(b"", int(rng.integers(0, handle + 1)))
        for _ in range(int(rng.integers(0, 4))):
            server.step()
            server.engine.check()
    server.run()


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("rule", ["plain", "mixed"])
def test_choices_of_a_request_share_its_prompt(
    serve: Serve, rule: str, prefix_caching: bool
) -> None:
    server = serve(rule=RULES[rule], prefix_caching=prefix_caching)
    for prompt in texts(6, seed=7):
        server.submit(prompt, n=3)
    long = np.random.default_rng(8).integers(0, VOCAB, 30).tolist()
    handle = server.submit(long, n=2)
    server.run()
    assert server.replies[handle, 1].num_cached == 28


def test_without_prefix_caching_nothing_is_restored(serve: Serve) -> None:
    server = serve(prefix_caching=False)
    prompt = texts(1, seed=9)[0] * 2
    assert [server.ask(prompt).num_cached for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("rule", RULES)
def test_prompt_logprobs_are_those_of_one_pass(serve: Serve, rule: str) -> None:
    """Of prompts in chunks, beside rows with drafts and after restored prefixes."""
    server = serve(rule=RULES[rule], max_step_tokens=7)
    prompts = [prompt for prompt in texts(8, seed=10) if len(prompt) > 1]
    reported: dict[int, PromptLogprobs] = {}
    for prompt in [*prompts, *prompts]:
        server.submit(prompt, prompt_logprobs=PromptLogprobsParams(start=1 + len(prompt) // 2))
        for _, output in server.step():
            reported |= {each.handle: each for each in output.prompt_logprobs}
    while server.engine.has_work:
        for _, output in server.step():
            reported |= {each.handle: each for each in output.prompt_logprobs}
    server.check()
    assert len(reported) == 2 * len(prompts)
    for handle, found in reported.items():
        prompt = server.replies[handle, 0].prompt
        logprobs = reference(prompt).log_softmax(-1)[found.start - 1 : -1]
        wanted = logprobs.gather(1, torch.tensor(prompt[found.start :])[:, None])[:, 0]
        assert (wanted - torch.from_numpy(found.logprobs.chosen)).abs().max() < LOGPROB_ERROR
