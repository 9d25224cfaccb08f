"""Bounds of the parameters, each refused with its own name. Nothing here is random."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from sampling.params import (
    MAX_BAD_WORD_TOKENS,
    MAX_EDITS,
    MAX_LOGPROB_TOKEN_IDS,
    ParameterError,
    SamplingParams,
)

INF, NAN = math.inf, math.nan
ACCEPTED: dict[str, list[Any]] = {
    "temperature": [0.0, 5e-324, 1e-8, 1, 100.0, 1e6],
    "top_k": [0, 1, 2**31 - 1],
    "top_p": [5e-324, 0.5, 1, 1.0],
    "min_p": [0.0, 0, 5e-324, 1.0],
    "repetition_penalty": [1e-6, 1, 1e6],
    "presence_penalty": [-2.0, 0, 2.0],
    "frequency_penalty": [-2.0, 0, 2.0],
    "min_tokens": [0, 2**31 - 1],
    "seed": [None, 0, -1, 2**63 - 1, -(2**63)],
    "logit_bias": [{}, {0: -100.0, 1: 100.0, 2: 0.0}],
    "allowed_token_ids": [None, (0,), (3, 3)],
    "bad_words": [(), ((1,),), ((1, 2), (1, 2))],
    "logprobs": [None, 0, 20, 10**6],
    "logprob_token_ids": [None, (0,), (5,) * MAX_LOGPROB_TOKEN_IDS],
}
REFUSED: dict[str, list[Any]] = {
    "temperature": [-1e-9, -1.0, INF, -INF, NAN],
    "top_k": [-1, 2**31, NAN],
    "top_p": [0.0, -0.1, 1.0000001, INF, NAN],
    "min_p": [-1e-9, 1.0000001, INF, NAN],
    "repetition_penalty": [0.0, -1.0, 9e-7, 1e7, INF, NAN],
    "presence_penalty": [-2.0001, 2.0001, INF, NAN],
    "frequency_penalty": [-2.0001, 2.0001, -INF, NAN],
    "min_tokens": [-1, 2**31],
    "seed": [2**63, -(2**63) - 1, 2**64],
    "logit_bias": [{5: 100.001}, {5: 0.0, 6: -INF}, {5: NAN}],
    "allowed_token_ids": [()],
    "bad_words": [((),), ((1,), ()), (tuple(range(MAX_BAD_WORD_TOKENS + 1)),)],
    "logprobs": [-1, 2**31],
    "logprob_token_ids": [(), (5,) * (MAX_LOGPROB_TOKEN_IDS + 1)],
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in ACCEPTED.items() for v in values]
)
def test_accepted(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in REFUSED.items() for v in values]
)
def test_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParameterError) as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.param == name


def test_every_bounded_parameter_is_covered() -> None:
    without_bounds = {"stop_token_ids", "logprobs_mode", "kept_logprob", "constrained"}
    assert set(ACCEPTED) == set(REFUSED)
    assert set(SamplingParams.__struct_fields__) - without_bounds == set(REFUSED)


def test_the_message_holds_limit_and_value() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"top_p": 1.5}, ["(0, 1]", "1.5"]),
        ({"min_p": -0.5}, ["[0, 1]", "-0.5"]),
        ({"temperature": -3.0}, ["[0, inf)", "-3.0"]),
        ({"top_k": -7}, [f"[0, {2**31 - 1}]", "-7"]),
        ({"seed": 2**63}, [str(-(2**63)), str(2**63 - 1), str(2**63)]),
        ({"logprob_token_ids": (1,) * 129}, ["[1, 128]", "129"]),
    ]
    for params, words in cases:
        with pytest.raises(ParameterError) as refusal:
            SamplingParams(**params)
        for word in words:
            assert word in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "logprob_token_ids"]
)
def test_ids_outside_the_vocabulary_are_refused_by_name(name: str) -> None:
    shapes: dict[str, Callable[[int], Any]] = {
        "logit_bias": lambda t: {0: 1.0, t: 1.0},
        "bad_words": lambda t: ((0,), (t, 1)),
    }
    make: Callable[[int], Any] = shapes.get(name, lambda t: (0, t))
    for token_id in (0, 99):
        SamplingParams(**{name: make(token_id)}).check_vocab(100)
    for token_id in (-1, 100, 2**40):
        with pytest.raises(ParameterError, match=str(token_id)) as refusal:
            SamplingParams(**{name: make(token_id)}).check_vocab(100)
        assert refusal.value.param == name
        assert "0 to 99" in str(refusal.value)


def test_edits_are_bounded_together() -> None:
    half = MAX_EDITS // 2
    bias, stops = dict.fromkeys(range(half), 1.0), tuple(range(half))
    SamplingParams(logit_bias=bias, stop_token_ids=stops, min_tokens=1)
    SamplingParams(logit_bias=bias, stop_token_ids=(*stops, 1))  # not masked without min_tokens
    SamplingParams(logit_bias=bias, bad_words=((1,),) * half)
    with pytest.raises(ParameterError, match=str(MAX_EDITS + 1)) as refusal:
        SamplingParams(logit_bias=bias, stop_token_ids=(*stops, 1), min_tokens=1)
    assert refusal.value.param == "stop_token_ids"
    with pytest.raises(ParameterError) as refusal:
        SamplingParams(logit_bias=bias | {9999: 1.0}, bad_words=((1,),) * half)
    assert refusal.value.param == "logit_bias"
    SamplingParams(bad_words=((1,) * 1024,) * 2)
    with pytest.raises(ParameterError) as refusal:
        SamplingParams(bad_words=((1,) * 1024, (1,) * 1025))
    assert refusal.value.param == "bad_words"


def test_what_is_greedy_and_what_is_penalized() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert not SamplingParams(temperature=5e-324).greedy
    assert not SamplingParams().penalized
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        factor: dict[str, Any] = {name: 1.1}
        assert SamplingParams(**factor).penalized
    assert SamplingParams(repetition_penalty=0.9).penalized
    assert SamplingParams(presence_penalty=-1.0).penalized
