"""What decisions ask, and that their answers are right."""

import itertools
import json
from collections import Counter

import pytest

from demo.decisions import words
from demo.decisions.decision import Decision
from demo.decisions.drawn import FAMILIES, decisions
from demo.dialogues import is_held_out

NUMBER = 1500


@pytest.fixture(scope="module")
def drawn() -> list[Decision]:
    return list(itertools.islice(decisions(3), NUMBER))


def chosen(decision: Decision) -> str:
    option = decision.asked.question.options[decision.asked.answer]
    assert isinstance(option.value, str)
    return option.value


def rows(state: str) -> dict[str, str]:
    """A table that is written as a list or in Markdown."""
    if state.startswith("- "):
        return dict(line[2:].split(": ") for line in state.split("\n"))
    return dict(line[2:-2].split(" | ") for line in state.split("\n")[2:])


def test_a_seed_gives_the_same_decisions_and_others_give_others(drawn: list[Decision]) -> None:
    assert drawn[:50] == list(itertools.islice(decisions(3), 50))
    assert drawn[:50] != list(itertools.islice(decisions(4), 50))


def test_parts_share_no_content(drawn: list[Decision]) -> None:
    held_out = list(itertools.islice(decisions(3, held_out=True), 300))
    assert {is_held_out(each.asked.content) for each in held_out} == {True}
    assert {is_held_out(each.asked.content) for each in drawn} == {False}


def test_every_family_kind_and_place_is_asked_for(drawn: list[Decision]) -> None:
    families = Counter(each.family for each in drawn)
    for family, share in FAMILIES.items():
        # Six standard deviations of a share of at most a half: below 1e-8.
        assert abs(families[family] - NUMBER * share / 100) < 3 * NUMBER**0.5
    assert {each.asked.question.kind for each in drawn} == {"predicate", "choice", "score"}
    labels = Counter(each.label for each in drawn)
    for label in ("yes", "no", "A", "B", "C", "0", "1", "2"):
        assert labels[label] > 20, label
    assert abs(labels["yes"] - labels["no"]) < 0.25 * (labels["yes"] + labels["no"])


def test_labels_stand_for_their_options(drawn: list[Decision]) -> None:
    for each in drawn:
        text = each.dialogue.history[-1]["content"]
        assert text.startswith(each.state)
        if each.labels == "options":
            assert each.label == chosen(each)
        elif each.asked.question.kind == "predicate":
            assert each.label == ("yes", "no")[each.asked.answer]
        else:
            assert f"\n{each.label}: {chosen(each)}" in text


def test_a_ticket_is_for_the_team_whose_words_it_has(drawn: list[Decision]) -> None:
    seen = 0
    for each in drawn:
        if each.family == "tickets" and each.asked.question.kind == "choice":
            [team] = [
                team
                for team in words.TEAMS
                for problem in team.problems
                for slot in team.slots
                if problem.format(it=slot) in each.state
                and each.asked.content == problem.format(it=slot)
            ][:1]
            option = each.asked.question.options[each.asked.answer]
            assert option.value in team.names or option.description in team.descriptions
            seen += 1
    assert seen > 50


def test_tables_say_what_is_asked_for(drawn: list[Decision]) -> None:
    seen: Counter[str] = Counter()
    for each in drawn:
        if each.family != "tables" or not each.state.startswith(("- ", "|")):
            continue
        table, question = rows(each.state), each.asked.question
        key = next(key for key in table if f" {key}" in question.instructions)
        if question.kind == "predicate":
            is_said = f" {table[key]}" in question.instructions
            assert each.label == ("yes" if is_said else "no")
        else:
            assert chosen(each) == table[key]
        seen[question.kind] += 1
    assert min(seen["predicate"], seen["choice"]) > 20


def test_right_calls_have_the_numbers_of_the_question(drawn: list[Decision]) -> None:
    seen = 0
    for each in drawn:
        if " calls add: " in each.state:
            asked, _, call = each.state.partition("\nassistant calls add: ")
            numbers = [str(number) for number in json.loads(call).values()]
            adds = any(word in asked for word in ("plus", "+", "dd", "sum"))
            is_right = adds and all(number in asked for number in numbers)
            says_right = each.asked.question.instructions in words.RIGHT_CALL_CLAIMS
            assert (each.label == "yes") == (is_right == says_right)
            seen += 1
    assert seen > 20
