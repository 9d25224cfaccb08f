"""Items are scored from the state after their query, as in one pass over the whole text."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from engine.memory.states import bytes_per_slot
from engine.messages.request import ScoringRequest
from engine.messages.step_output import Finish, ItemScores
from tests.engine.memory.toy import VOCAB, ToyModel, reference
from tests.engine.memory.toy_engine import LOGPROB_ERROR, Serve, Server, texts, toy_server
from tests.engine.scoring.scoring_fake import scoring, sequences, with_branches


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    return partial(toy_server, monkeypatch)


def run(server: Server) -> dict[int, ItemScores]:
    """Run everything, check the replies, and return the scores by handle."""
    ended: dict[int, ItemScores] = {}
    for _ in range(1000):
        for _, output in server.step():
            ended |= {scores.handle: scores for scores in output.item_scores}
        server.engine.check()
        if not server.engine.has_work:
            break
    assert not server.engine.has_work
    server.check()
    return ended


def check(asked: ScoringRequest, scores: ItemScores) -> None:
    assert scores.finish == Finish.LENGTH
    wanted, p = [], 0
    for text, num_read in zip(sequences(asked), asked.num_read.tolist(), strict=True):
        logprobs = reference([*asked.query_token_ids.tolist(), *text.tolist()]).log_softmax(-1)
        for back in range(num_read, 0, -1):
            wanted.append(logprobs[-back, asked.id_lists[p % len(asked.id_lists)].tolist()])
            p += 1
    assert (torch.stack(wanted) - torch.from_numpy(scores.values)).abs().max() < LOGPROB_ERROR


def asked_for(rng: np.random.Generator, handle: int, query: list[int]) -> ScoringRequest:
    """Items of 1 to 9 tokens after a query, some continued by branches."""

    def drawn(least: int, most: int) -> list[int]:
        ids: list[int] = rng.integers(0, VOCAB, int(rng.integers(least, most))).tolist()
        return ids

    items = [drawn(1, 10) for _ in range(int(rng.integers(1, 5)))]
    asked = scoring(handle, query, items)
    if handle % 2:
        return asked
    return with_branches(
        asked, [[drawn(1, 4) for _ in range(1 + i % 3)] for i in range(len(items))]
    )


@pytest.mark.parametrize("budget", [5, 13, 64])  # items are split at 5, queries at both
@pytest.mark.parametrize("num_snapshots", [3, 5, 30])
def test_scores_are_those_of_whole_texts(serve: Serve, budget: int, num_snapshots: int) -> None:
    """Beside choices, some of which share the queries."""
    server = serve(max_step_tokens=budget, num_snapshots=num_snapshots)
    rng, asked = np.random.default_rng(budget), dict[int, ScoringRequest]()
    ended: dict[int, ItemScores] = {}
    for handle, query in enumerate(texts(10, seed=2, longest=30), start=1000):
        asked[handle] = asked_for(rng, handle, query if handle % 4 else [])
        server.engine.score(b"", asked[handle])
        server.submit(query, 4)
        for _, output in server.step():
            ended |= {scores.handle: scores for scores in output.item_scores}
        server.engine.check()
    ended |= run(server)
    assert ended.keys() == asked.keys()
    for handle, request in asked.items():
        check(request, ended[handle])


def test_a_querys_state_is_found_again(serve: Serve) -> None:
    server, query = serve(), texts(1, seed=3)[0] * 3
    cached = []
    for handle in (1000, 1001):
        asked = scoring(handle, query, [[1, 2], [3]])
        server.engine.score(b"", asked)
        scores = run(server)[handle]
        check(asked, scores)
        cached.append(scores.num_cached)
    assert cached == [0, len(query) // 4 * 4]
    assert server.ask([*query, 5]).num_cached == cached[1]
    snapshots = server.engine.stats().snapshots
    assert snapshots is not None
    assert snapshots.num_hits == 2
    assert (
        snapshots.kept_bytes == snapshots.num_kept * bytes_per_slot(ToyModel().state_specs(0)) > 0
    )


@pytest.mark.parametrize(("num_snapshots", "num_steps"), [(30, 1), (9, 2), (7, 3), (3, 3)])
def test_branches_begin_from_the_state_after_their_stem(
    serve: Serve, num_snapshots: int, num_steps: int
) -> None:
    """Query, stems and branches are computed once, in one step where there is room for stems: for
    one of the request's own, and for an eighth of the snapshots besides."""
    server, query = serve(max_step_tokens=100, num_snapshots=num_snapshots), texts(1, seed=3)[0][:8]
    items = [[1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12, 13], [14, 15, 16, 17, 18, 19, 20, 21, 22]]
    branches = [[[1], [2, 3], [4]], [[5], [6]], [[7, 8], [9]], [[10], [11]]]
    asked = with_branches(scoring(1000, query, items), branches)
    server.engine.score(b"", asked)
    ended: list[ItemScores] = []
    computed = [0]
    while server.engine.has_work:
        for _, output in server.step():
            ended += output.item_scores
        computed.append(server.engine.stats().prompt_tokens_computed)
        server.engine.check()
    check(asked, ended[0])
    stems, rests = [4, 0, 4, 8], [2, 2, 1, 1]
    of_branches = [
        rest + len(branch) for rest, each in zip(rests, branches, strict=True) for branch in each
    ]
    assert computed[-1] == len(query) + sum(stems) + sum(of_branches)
    assert np.count_nonzero(np.diff(computed)) == num_steps


def test_a_held_state_leaves_room_for_those_that_a_request_reserves(serve: Serve) -> None:
    """The state that a query begins from is one more than the two that are reserved."""
    server, query = serve(num_snapshots=2), texts(1, seed=3)[0] * 3
    for handle in (1000, 1001):
        asked = scoring(handle, query, [[1, 2], [3]])
        server.engine.score(b"", asked)
        check(asked, run(server)[handle])


@pytest.mark.parametrize(("branches", "needed"), [([[]], 2), ([[1], [2]], 3)])
def test_without_snapshots_scoring_is_refused(
    serve: Serve, branches: list[list[int]], needed: int
) -> None:
    asked = with_branches(scoring(1000, [1, 2, 3], [[4, 5, 6]]), [branches])
    for num_snapshots in (needed - 1, needed):
        server = serve(num_snapshots=num_snapshots)
        server.engine.score(b"", asked)
        error = run(server)[1000].error
        assert (error == "there is no memory for snapshots of states") == (num_snapshots < needed)
