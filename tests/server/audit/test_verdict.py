"""What follows from derived tokens: which differences count, evidence, words and status."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.audit.drawn import DrawnChoice, Redrawn
from sampling.params import SamplingParams
from server.audit import verdict
from server.audit.report import conclusion, document, header, line, status
from server.audit.verdict import ROUNDING, Finding, Noise, allowed_noise


def choice(**given: Any) -> DrawnChoice:
    fields = {"line": 1, "index": 0, "choice": 0, "prompt": [1], "output": [3, 3, 3, 3]}
    return DrawnChoice(**{**fields, "params": SamplingParams(seed=1), **given})


def tokens(*noises: float, logprob: float = -5.0, gap: float = 0.0) -> list[Redrawn]:
    return [
        Redrawn(
            position=1 + i,
            token=3,
            derived=3 if noise == 0 else 4,
            noise=noise,
            logprob=logprob,
            gap=gap,
        )
        for i, noise in enumerate(noises)
    ]


def judge(
    choice: DrawnChoice, tokens: list[Redrawn], noise: float, known: set[Noise] | None = None
) -> Finding:
    return verdict.judge(choice, tokens, noise, set() if known is None else known)


def test_equal_and_explained_tokens_are_drawn() -> None:
    found = judge(choice(), tokens(0, 0, 0.005, 0), 0.01)
    assert (found.equal, found.explained, found.unexplained) == (3, 1, 0)
    assert (found.noise, found.is_drawn) == (0.005, True)
    assert found.words == "drawn by this model with this seed"
    assert status([found]) == 0


@pytest.mark.parametrize("noise", [0.0101, math.inf])
def test_one_token_beyond_the_noise_is_not(noise: float) -> None:
    found = judge(choice(), tokens(0, 0.005, noise, 0), 0.01)
    assert (found.unexplained, found.first) == (1, (3, 3, 4))
    assert not found.is_drawn
    assert "the first at position 3 is 3, where 4 is due" in found.words
    assert status([found]) == 1
    assert "were not drawn by M" in conclusion([found], "M", 0.01)


def test_without_noise_roundings_of_tile_masses_are_left() -> None:
    params = SamplingParams(seed=1, temperature=2.0)
    near = judge(choice(params=params), tokens(0, 2 * ROUNDING), 0.0)
    far = judge(choice(params=params), tokens(0, 2.1 * ROUNDING), 0.0)
    assert (near.is_drawn, far.is_drawn) == (True, False)


def test_evidence_is_the_odds_of_the_tokens() -> None:
    found = judge(choice(), tokens(0, 0, logprob=-5.0), 0.0)
    assert found.log10_odds == pytest.approx(-10 / math.log(10), abs=1e-3)
    with_noise = judge(choice(), tokens(0, 0, logprob=-5.0), 0.5)
    assert with_noise.log10_odds == pytest.approx(-6 / math.log(10))
    likely = judge(choice(), tokens(0, 0, logprob=-0.01), 0.001)
    assert "another draw" in likely.words
    assert likely.is_drawn


def test_greedy_tokens_are_no_evidence_of_a_seed() -> None:
    greedy = choice(params=SamplingParams(temperature=0.0))
    found = judge(greedy, tokens(0, 0), 0.001)
    assert (found.log10_odds, found.words) == (0.0, "what this model gives greedily")


def test_logprobs_that_are_off_are_of_other_weights() -> None:
    reported, found = choice(logprobs=[]), [*tokens(0), *tokens(0, gap=0.0021)]
    assert not judge(reported, found, 0.001).is_drawn
    assert judge(reported, found, 0.0011).is_drawn
    assert "not of these weights" in judge(reported, found, 0.0).words


def test_noise_by_dtype() -> None:
    assert allowed_noise(None, "float32") == 1e-3
    assert allowed_noise(None, "bfloat16") == 0.25
    assert allowed_noise(0.0, "bfloat16") == 0.0


def test_refusals_are_listed_and_give_another_status() -> None:
    refused = Finding(line=2, index=0, refusal="it has no seed")
    good = judge(choice(), tokens(0, 0), 0.0)
    assert status([good, refused]) == status([]) == 3
    assert status([good, refused, judge(choice(), tokens(math.inf), 0.0)]) == 1
    assert line(refused).endswith("not audited: it has no seed")
    assert "1 could not be audited" in conclusion([good, refused], "M", 0.0)
    assert conclusion([refused], "M", 0.0) == "No choice could be audited: 1 of 1."


def test_the_table_and_the_document_say_the_same() -> None:
    found = judge(choice(logprobs=[]), tokens(0, 0.005, logprob=-5.0), 0.01)
    cells = dict(zip(header().split(), line(found).split(maxsplit=8), strict=True))
    assert cells["equal"] == "1"
    assert cells["explained"] == "1"
    assert cells["noise"] == "0.005"
    written = document([found], "M", 0.01)
    assert written["choices"][0]["words"] == cells["verdict"]
    assert "drew all 2 tokens of 1 choices" in written["conclusion"]
    assert "with logits off by at most 0.01 nats" in written["conclusion"]


def test_noise_that_drew_a_token_before_proves_nothing_more() -> None:
    known: set[Noise] = set()
    first = judge(choice(), tokens(0, 0), 0.0, known)
    assert first.log10_fresh == first.log10_odds < 0
    longer = judge(choice(line=2), tokens(0, 0, 0, 0), 0.0, known)
    assert longer.log10_odds == pytest.approx(2 * first.log10_odds)
    assert longer.log10_fresh == pytest.approx(first.log10_odds)  # of two more tokens
    again = judge(choice(line=3, params=SamplingParams(seed=1, top_p=0.9)), tokens(0), 0.0, known)
    assert again.log10_fresh == 0 > again.log10_odds
    other = judge(choice(line=4, params=SamplingParams(seed=2)), tokens(0), 0.0, known)
    assert other.log10_fresh == other.log10_odds < 0
    of_both = conclusion([first, again], "M", 0.0)
    assert of_both == conclusion([first], "M", 0.0).replace("2 tokens of 1", "3 tokens of 2")
