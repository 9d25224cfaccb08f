"""The stored vectors of the noise contract are those that the sampler gives."""

from __future__ import annotations

import json

import pytest

from website.noise_vectors import FILE, text

EXPONENTIAL_ERROR = 2.0**-50
"""What the contract allows between two libraries' logarithms."""


def test_the_stored_vectors_are_those_that_are_made() -> None:
    """Else run `python -m website.noise_vectors`."""
    stored, made = json.loads(FILE.read_text()), json.loads(text())
    for case, own in zip(stored["uniforms"], made["uniforms"], strict=True):
        wanted = pytest.approx(case.pop("exponential"), rel=EXPONENTIAL_ERROR, abs=0)
        assert own.pop("exponential") == wanted
    assert stored == made
