"""Grammars of schemas held to the JSON Schema Test Suite."""

from __future__ import annotations

import json

import pytest

from server.errors import ApiError
from server.structured.spec import CheckedGrammar
from tests.schema_suite import SuiteCase, names_a_keyword, schema_suite
from tests.server.structured.checks import checked, matches

LOOSE = ("date.json", "date-time.json", "time.json", "ecmascript-regex.json")
"""Where llguidance is known to be wider: leap days and seconds, and what Unicode calls a space."""
TOO_LARGE = "bignum.json"
"""Numbers beyond 64 bits, which reading a body turns into floats."""


def grammar_of(case: SuiteCase) -> CheckedGrammar | None:
    """The grammar of a schema; None where it is refused, with the reason."""
    try:
        return checked("json", case.schema)
    except ApiError as error:
        refusal = error
    assert refusal.status == 400, case.name
    assert names_a_keyword(refusal.param or "", case.schema), (case.name, refusal.message)
    return None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_invalid_is_taken_and_every_refusal_names_its_keyword() -> None:
    counts = dict.fromkeys(("kept", "refused", "valid", "taken", "invalid", "loose"), 0)
    for case in schema_suite():
        if TOO_LARGE in case.name:
            continue
        grammar = grammar_of(case)
        if grammar is None:
            counts["refused"] += 1
            continue
        counts["kept"] += 1
        for value, is_valid in case.instances:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            is_taken = matches(grammar, text)
            if is_valid:  # an object's keys may be in an order that the grammar does not
                counts["valid"] += 1
                counts["taken"] += is_taken
            elif is_taken and not case.is_required and case.name.split(": ")[0].endswith(LOOSE):
                counts["loose"] += 1
            else:
                assert not is_taken, (case.name, text)
                counts["invalid"] += 1
    assert counts["taken"] > 0.9 * counts["valid"], counts
    assert counts["kept"] > 200, counts
    assert counts["invalid"] > 400, counts
    assert counts["loose"] < 20, counts
