"""What logprobs say of questions, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages.step_output import Finish, ItemScores
from server.endpoints.decisions.answers import Answer, LabelReadings, answers, softmax
from server.endpoints.decisions.spec import DecisionPrompts, Read
from server.schema.ids import IdLists
from server.scoring.labels import LabelTree
from server.scoring.spec import ScoringSpec


def answer(*p: float) -> Answer:
    found = np.array(p)
    one = np.zeros(1, dtype=np.float32)
    reading = LabelReadings(
        np.log(found)[None], np.full(1, -np.inf), one, np.ones(1, np.int32), one - 9
    )
    return Answer(found, found[None], [Read(0, tuple(range(len(p))))], reading, 1.0)


@pytest.mark.parametrize(
    ("p", "choice", "score"),
    [
        ((1.0, 0.0, 0.0), 1.0, 1.0),
        ((0.25, 0.25, 0.25, 0.25), 0.0, 0.0),  # mean |i - 1.5| is 1, E|i - 0| is 1.5
        ((0.5, 0.3, 0.2), 0.25, 1 - 0.7 / (2 / 3)),
        ((0.1, 0.8, 0.1), 0.7, 1 - 0.2 / (2 / 3)),
        ((0.3, 0.7), 0.4, 1 - 0.3 / 0.5),
    ],
)
def test_confidence(p: tuple[float, ...], choice: float, score: float) -> None:
    with np.errstate(divide="ignore"):
        found = answer(*p)
    assert found.choice_confidence == pytest.approx(choice)
    assert found.score_confidence == pytest.approx(max(score, 0))


def test_the_expected_level() -> None:
    assert answer(0.5, 0.3, 0.2).expected == pytest.approx(0.7)


@given(st.lists(st.floats(-80, 0), min_size=2, max_size=255))
def test_probabilities_sum_to_one(logprobs: list[float]) -> None:
    p = softmax(np.array([logprobs]))[0]
    assert abs(p.sum() - 1) < 1e-12
    order = np.argsort(logprobs, kind="stable")
    assert (np.diff(p[order]) >= 0).all()


def test_labels_that_cannot_be_drawn() -> None:
    assert softmax(np.array([[-np.inf, -3.0]])).tolist() == [[0, 1]]
    assert softmax(np.array([[-np.inf, -np.inf]])).tolist() == [[0.5, 0.5]]


TREE = LabelTree.of([(5,), (6,)])


def asked(
    p: list[list[float]], options: list[tuple[int, ...]], questions: list[int]
) -> tuple[DecisionPrompts, ItemScores]:
    """Prompts whose two labels have these probabilities in the order shown."""
    n = len(p)
    items = IdLists(np.arange(n, dtype=np.int32), np.ones(n, dtype=np.int32))
    spec = ScoringSpec(np.zeros(3, np.int32), items, [TREE], np.zeros(n, dtype=np.int64))
    reads = [Read(question, own) for question, own in zip(questions, options, strict=True)]
    others = np.log(1 - np.array(p).sum(axis=1)).astype(np.float32)
    return DecisionPrompts(spec, reads), ItemScores(
        handle=1,
        finish=Finish.LENGTH,
        num_cached=0,
        values=np.log(p).astype(np.float32),
        others=others,
        best_ids=np.full(n, 9, dtype=np.int32),
        best=others,
        log_sums=others.astype(np.float64),
    )


def test_orders_are_averaged_option_by_option() -> None:
    orders = [(0, 1), (1, 0)]
    pair = asked([[0.6, 0.2], [0.5, 0.25], [0.1, 0.3]], [*orders, (0, 1)], [0, 0, 1])
    first, second = answers(2, *pair)
    want = np.array([[0.75, 0.25], [1 / 3, 2 / 3]])
    np.testing.assert_allclose(first.by_order, want, atol=1e-6)
    np.testing.assert_allclose(first.probabilities, want.mean(axis=0), atol=1e-6)
    assert first.spread == pytest.approx(0.75 - 1 / 3, abs=1e-6)
    assert not first.argmax_is_stable
    assert first.label_mass == pytest.approx((0.8 + 0.75) / 2, abs=1e-6)
    assert first.argmax_is_label
    np.testing.assert_allclose(second.probabilities, [0.25, 0.75], atol=1e-6)
    assert (second.spread, second.argmax_is_stable) == (0, True)
    assert not second.argmax_is_label, "0.6 begins no label"


def test_questions_of_different_options_are_answered_in_their_order() -> None:
    """Two trees of two labels, and one of three, in turn; each against the formulas by hand."""
    trees = [TREE, LabelTree.of([(5,), (6,), (7,)]), LabelTree.of([(8,), (9, 1)])]
    which, rng = [1, 2, 0, 1, 2, 0], np.random.default_rng(3)
    items = IdLists(np.arange(6, dtype=np.int32), np.ones(6, dtype=np.int32))
    spec = ScoringSpec(np.zeros(3, np.int32), items, trees, np.array(which))
    options = [tuple(rng.permutation(2 + (k == 1)).tolist()) for k in which]
    prompts = DecisionPrompts(spec, [Read(n, own) for n, own in enumerate(options)])
    num_read = sum(len(trees[k].id_lists) for k in which)
    values = np.log(rng.dirichlet(np.ones(4), num_read)[:, :3]).astype(np.float32)
    zeros = np.zeros(num_read, dtype=np.float32)
    scores = ItemScores(
        handle=1,
        finish=Finish.LENGTH,
        num_cached=0,
        values=values,
        others=zeros,
        best_ids=np.arange(num_read, dtype=np.int32),
        best=zeros,
        log_sums=zeros.astype(np.float64),
    )
    first = 0
    for n, found in enumerate(answers(6, prompts, scores)):
        tree, shown = trees[which[n]], values[first:].astype(np.float64)
        logprobs = shown[0, : 2 + (which[n] == 1)].copy()
        if which[n] == 2:
            logprobs[1] += shown[1, 0]
        p = np.exp(logprobs)
        assert found.reads == [Read(n, options[n])]
        np.testing.assert_allclose(
            found.probabilities[list(options[n])], p / p.sum(), rtol=0, atol=1e-12
        )
        assert found.label_mass == pytest.approx(p.sum(), abs=1e-12)
        assert found.readings.best_ids.tolist() == [first]
        first += len(tree.id_lists)


def test_a_prior_divides_each_label() -> None:
    pair = asked([[0.6, 0.2], [0.2, 0.6]], [(0, 1), (1, 0)], [0, 0])
    prior = asked([[0.3, 0.1], [0.3, 0.1]], [(0, 1), (1, 0)], [0, 0])
    (found,) = answers(1, *pair, prior=prior)
    want = np.array([[0.5, 0.5], [0.9, 0.1]])  # (2, 2); and (2/3, 6) of options 1 and 0
    np.testing.assert_allclose(found.by_order, want, atol=1e-6)
