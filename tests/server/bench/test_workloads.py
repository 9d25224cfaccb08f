"""The workloads are what their description says, the same for a seed and fresh for another."""

from __future__ import annotations

import pytest

from server.bench.workloads import NAMES, STREAMED, Lengths, make_workload, workload

VOCAB_SIZE = 151_936


@pytest.mark.parametrize(
    ("name", "count", "num_in", "num_out"),
    [
        ("single", 1, 128, 256),
        ("greedy", 256, 64, 256),
        ("stream-lp", 256, 64, 256),
        ("burst", 512, 512, 128),
        ("long", 32, 7900, 256),
        ("poisson", 400, 256, 128),
        ("score", 2000, 200, 1),
        ("score-prefix", 2000, 1056, 1),
        ("chat", 32, 64, 64),
    ],
)
def test_sizes(name: str, count: int, num_in: int, num_out: int) -> None:
    bodies = make_workload(name, VOCAB_SIZE)
    assert len(bodies) == count
    assert {(len(body["prompt"]), body["max_tokens"]) for body in bodies} == {(num_in, num_out)}
    ids = [token for body in bodies for token in body["prompt"]]
    assert 1000 <= min(ids) < max(ids) < VOCAB_SIZE - 1000


def test_lengths_of_mixed() -> None:
    bodies = make_workload("mixed", VOCAB_SIZE)
    lengths = [length for body in bodies for length in (len(body["prompt"]), body["max_tokens"])]
    assert len(bodies) == 256
    assert 100 <= min(lengths) < 130  # of 512 uniform lengths; odds of 1e-7 to be off
    assert 995 < max(lengths) <= 1024


@pytest.mark.parametrize("name", NAMES)
def test_seeds(name: str) -> None:
    small = Lengths(size=3, input=5)
    first = make_workload(name, 8000, 1, small)
    assert first == make_workload(name, 8000, 1, small)
    assert first != make_workload(name, 8000, 2, small)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_that_are_asked_for(name: str) -> None:
    made = workload(name, 8000, 0, Lengths(size=3, input=5, output=7))
    if name == "gscore":
        (body,) = made.bodies
        assert [len(item) for item in body["items"]] == [5, 5, 5]
        assert (made.num_counted, made.path) == (3, "/generative_scoring")
        return
    if name == "decisions":
        assert [len(body["input"].split()) for body in made.bodies] == [5, 5, 5]
        assert {len(body["questions"]) for body in made.bodies} == {made.num_counted}
        assert made.path == "/v1/decisions"
        return
    own = 1024 if name == "score-prefix" else 0
    num_out = 1 if name.startswith("score") else 7
    sizes = [(len(body["prompt"]), body["max_tokens"]) for body in made.bodies]
    if name == "stream-beside":  # what arrives beside the streams is what it is
        assert sizes[3:] == [(512, 1)] * 80
        del sizes[3:]
    assert sizes == [(own + 5, num_out)] * 3


def test_streams_ask_for_their_usage() -> None:
    for name in NAMES:
        made = workload(name, 8000, 0, Lengths(size=2))
        assert made.is_streamed == (name in STREAMED)
        assert made.arrives == (name in ("poisson", "stream-beside"))
        assert made.num_first == (2 if name == "stream-beside" else 1)
        streamed = [body.get("stream_options") for body in made.bodies]
        assert streamed == [{"include_usage": True} if made.is_streamed else None] * len(streamed)


def test_a_name_that_is_none() -> None:
    with pytest.raises(ValueError, match="no workload named x"):
        make_workload("x", 8000)
