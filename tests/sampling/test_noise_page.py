"""What `docs/noise.md` says is enough: plain Python written from it gives the vectors' tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sampling import noise_page

VECTORS = json.loads((Path(__file__).parents[2] / "docs/noise.json").read_text())
CLOSE = 2.0**-50


def test_the_contract_is_the_first_one() -> None:
    assert VECTORS["contract"] == 1


@pytest.mark.parametrize("case", VECTORS["philox"])
def test_words(case: dict[str, Any]) -> None:
    assert noise_page.philox(case["counter"], case["key"]) == case["words"]


@pytest.mark.parametrize("case", VECTORS["uniforms"])
def test_uniforms(case: dict[str, Any]) -> None:
    stream = noise_page.stream(case["purpose"], case["level"], case["depth"])
    assert stream == case["stream"]
    place = int(case["seed"]), case["index"], case["position"], case["choice"], stream
    assert noise_page.uniform(*place) == case["uniform"]
    assert noise_page.exponential(*place) == pytest.approx(case["exponential"], rel=CLOSE, abs=0)


@pytest.mark.parametrize("case", VECTORS["draws"])
def test_draws(case: dict[str, Any]) -> None:
    assert noise_page.draw(case) == case["token"]


@pytest.mark.parametrize("case", VECTORS["verifications"])
def test_verifications(case: dict[str, Any]) -> None:
    uniform, accepted, recovered = noise_page.verification(case)
    assert uniform == case["uniform"]
    assert (accepted, recovered) == (case["accepted"], case["recovered"])


PLACE = ("choice", "seed")
PARAMETERS = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens"),
)


@pytest.mark.parametrize("name", [*PLACE, *PARAMETERS])
def test_the_vectors_find_what_an_implementation_leaves_out(name: str) -> None:
    neutral = {name: 0} if name in PLACE else {}
    cases = [case for case in VECTORS["draws"] if name in case]
    without = [{key: case[key] for key in case if key != name} | neutral for case in cases]
    assert any(noise_page.draw(w) != c["token"] for w, c in zip(without, cases, strict=True))
