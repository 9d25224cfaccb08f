"""The table of mutants fits the code, so that no mutant is lost when a file changes."""

from __future__ import annotations

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.page import PAGE, written
from tests.mutants.run import ROOT
from tests.mutants.table import MUTANTS


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_its_file_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    for test in mutant.tests:
        path, *groups, name = test.partition("[")[0].split("::")
        source = (ROOT / path).read_text()
        assert f"def {name}(" in source, f"{path} has no {name}"
        assert all(f"class {group}:" in source for group in groups), f"{path} has no {groups}"


def test_the_page_of_known_bugs_is_that_of_the_mutants() -> None:
    assert PAGE.read_text() == written(), "run python -m tests.mutants.page"
