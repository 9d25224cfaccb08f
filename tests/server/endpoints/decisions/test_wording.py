"""The words in which questions are put, for every kind of question and of labels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template

from server.endpoints.decisions.question import Kind, Labels, Option, Question
from server.endpoints.decisions.wording import WORDING, Shown, Wording
from server.errors import ApiError


def question(kind: Kind, *options: Option) -> Question:
    return Question(kind, "Which team?", options, "questions[2]", "questions[2].choices")


TEAMS = (Option("billing", "payments"), Option("support"))


def content(
    asked: Question, labels: list[str], kind: Labels = "letters", state: str = "It is late."
) -> str:
    return Wording(WORDING).content(state, Shown(asked, [1, 0], labels, kind))


def test_a_choice() -> None:
    assert content(question("choice", *TEAMS), ["A", "B"]) == (
        "It is late.\n\nAnswer with the letters of one option only.\n"
        "A: support\nB: billing - payments\nQuestion: Which team?"
    )


def test_a_choice_by_its_options() -> None:
    asked = question("choice", *TEAMS)
    assert content(asked, ["support", "billing"], "options") == (
        "It is late.\n\nAnswer with one of the options only.\n"
        "support\nbilling - payments\nQuestion: Which team?"
    )


def test_a_score() -> None:
    assert content(question("score", Option("low"), Option("high")), ["1", "0"]) == (
        "It is late.\n\nAnswer with the number of one level only.\n"
        "1: high\n0: low\nQuestion: Which team?"
    )


def test_a_score_by_its_levels_asks_for_no_number() -> None:
    asked = question("score", Option("low"), Option("high"))
    assert content(asked, ["high", "low"], "options") == (
        "It is late.\n\nAnswer with one of the options only.\nhigh\nlow\nQuestion: Which team?"
    )


def test_a_predicate_shows_its_options_where_they_are_described() -> None:
    bare = question("predicate", Option("yes"), Option("no"))
    assert content(bare, ["no", "yes"]) == (
        "It is late.\n\nAnswer with no or yes only.\nQuestion: Which team?"
    )
    described = question("predicate", Option("yes", "so it is"), Option("no"))
    assert "\nno\nyes - so it is\nQuestion" in content(described, ["no", "yes"])


def test_without_a_state_the_question_stands_alone() -> None:
    found = content(question("choice", *TEAMS), ["A", "B"], state="")
    assert found.startswith("Answer with the letters of one option only.\nA: support\n")


def test_what_a_template_refuses_is_the_client_s_to_know() -> None:
    wording = Wording("{{ state.missing.attribute }}")
    with pytest.raises(ApiError) as caught:
        wording.content("x", Shown(question("choice", *TEAMS), [0, 1], ["A", "B"], "letters"))
    assert caught.value.param == "questions[2]"


@given(st.text(max_size=40), st.sampled_from(("letters", "options")), st.booleans())
def test_instructions_stand_between_the_same_texts(
    instructions: str, kind: Labels, is_first: bool
) -> None:
    wording, options = Wording(WORDING), (*TEAMS, Option(instructions))[: 2 + is_first]
    asked = Question("choice", instructions, options, "questions[0]", "")
    order, labels = range(len(options)), ["A", "B", instructions][: len(options)]
    shown = Shown(asked, order, labels, kind)
    around = wording.around(instructions, shown)
    assert around is not None
    assert len(around) == 2
    whole = wording.content(instructions, shown)
    assert instructions.join(around).strip() == whole


KNOWING, ALONE = Wording(WORDING), Wording(WORDING + "{% set asked = question %}")
"""One that remembers what it worded, and one that words every question by the template."""
FEW = st.sampled_from(("", "late", " a\nb "))


@given(
    st.sampled_from(("", "It is late.", "{{ question }}", "\n it ")),
    FEW,
    st.lists(st.builds(Option, FEW | st.booleans(), st.none() | FEW), min_size=2, max_size=2),
    st.permutations(["A", "B"]),
    st.permutations([0, 1]),
    st.sampled_from(("choice", "score", "predicate")),
    st.sampled_from(("letters", "options")),
)
def test_what_is_remembered_is_what_the_template_writes(
    state: str,
    instructions: str,
    options: list[Option],
    labels: list[str],
    order: list[int],
    kind: Kind,
    labels_kind: Labels,
) -> None:
    asked = Question(kind, instructions, tuple(options), "questions[0]", "")
    shown = Shown(asked, order, labels, labels_kind)
    assert ALONE.around(state, shown) is None
    whole = ALONE.content(state, shown)
    assert KNOWING.content(state, shown) == whole
    around = KNOWING.around(state, shown)
    assert around is not None
    assert instructions.join(around).strip() == whole


@pytest.mark.parametrize(
    "template",
    [
        "{{ state | upper }} {{ question }}",
        "{% if state == 'It is late.' %}yes{% endif %}{{ question }}",
        "{{ state | length }} {{ question }}",
        "{% set about = state %}{{ about }} {{ question }}",
        "{% for word in state %}{{ word }}.{% endfor %}{{ question }}",
        "{{ state[:4] }} {{ question }}",
    ],
)
def test_templates_that_do_more_with_a_state_word_each(template: str) -> None:
    shown = Shown(question("choice", *TEAMS), [0, 1], ["A", "B"], "letters")
    wording = Wording(template)
    for state in ("It is late.", "It was late!"):
        written = Template(template).render(state=state, question="Which team?")
        assert wording.content(state, shown) == written


def test_wordings_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    wording, rendered = Wording(WORDING), list[str]()
    render = wording._template.render

    def noted(**variables: Any) -> str:
        rendered.append(variables["question"])
        return render(**variables)

    monkeypatch.setattr(wording._template, "render", noted)

    def ask(value: str) -> None:
        shown = Shown(question("choice", *TEAMS, Option(value)), [0, 1, 2], ["A"] * 3, "letters")
        wording.content("It is late.", shown)

    ask("x")
    ask("x")
    assert len(rendered) == 1
    for value in ("y" * 5000, "y" * 5000):
        ask(value)
    assert len(rendered) == 3  # too long to be kept
    for each in range(300):
        ask(str(each))
    ask("x")
    assert len(rendered) == 304  # it made room
    ask("299")
    assert len(rendered) == 304


@pytest.mark.parametrize(
    "template",
    [
        "{{ question | upper }}",
        "{{ question ~ '?' }}",
        "{{ question if state else '' }}",
        "{% if question %}{{ question }}{% endif %}",
        "{% filter upper %}{{ question }}{% endfilter %}",
        "{% set asked = question %}{{ asked }}",
        "{% set asked %}{{ question }}{% endset %}{{ asked | upper }}",
        "{% for word in question.split() %}{{ word }}{% endfor %}",
        "{% for question in answers %}{{ question }}{% endfor %}",
        "{% macro ask(question) %}{{ question }}{% endmacro %}{{ ask(question) }}",
        "{{ question }}{{ question | length }}",
    ],
)
def test_templates_that_do_more_with_instructions_word_each(template: str) -> None:
    asked = question("choice", *TEAMS)
    shown = Shown(asked, [0, 1], ["A", "B"], "letters")
    assert Wording(template).around("It is late.", shown) is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_instructions_are_written_as_often_as_the_template_does(count: int) -> None:
    wording = Wording(
        "{% for _ in range(" + str(count) + ") %}{{ question }},{% endfor %}{{ kind }}"
    )
    asked = question("score", *TEAMS)
    shown = Shown(asked, [0, 1], ["0", "1"], "letters")
    around = wording.around("", shown)
    assert around is not None
    assert "Which team?".join(around) == wording.content("", shown)
    assert len(around) == 1 + count
