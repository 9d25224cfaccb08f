"""The stored pictures are those that the code draws, and they say what the reference says."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from website.pictures import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_stored_picture_is_the_one_that_is_drawn(name: str) -> None:
    """Else run `python -m website.pictures`."""
    drawn = PICTURES[name]()
    assert (FOLDER / name).read_text() == drawn
    assert len(drawn) < 20_000
    assert ElementTree.fromstring(drawn).find("{*}title") is not None


def test_no_other_picture_is_stored() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PICTURES)
