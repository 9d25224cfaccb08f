"""The words in which a state and a question are put to the model: one Jinja template."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.endpoints.decisions.question import Labels, Question
from server.errors import bad_request

WORDING = """\
{% if state %}
{{ state }}

{% endif %}
{% if kind == "predicate" %}
Answer with {{ answers | join(" or ") }} only.
{% elif labels == "options" %}
Answer with one of the options only.
{% elif kind == "score" %}
Answer with the number of one level only.
{% else %}
Answer with the letters of one option only.
{% endif %}
{% for option in options %}
{{ option.label ~ ": " if option.label else "" }}{{ option.text }}
{%- if option.description %} - {{ option.description }}{% endif %}

{% endfor %}
Question: {{ question }}
"""
"""What a model is asked, unless `--decision-template` gives another template.

Variables: `state`, a text, empty where the model is asked without one; `kind`, "predicate",
"choice" or "score"; `question`, its instructions; `options`, those that are shown, each with
`label`, `text` and `description`; `answers`, the labels in the order shown; `labels`, "letters" or
"options".

What questions are likely to share comes first: a state is computed once for all questions, and so
are options that all of them have.
"""


_MARK, _STATE_MARK = (f"\ufdd0{secrets.token_hex(16)}\ufdd1" for _ in range(2))
"""Stand for a question's instructions and for the state; no request can know them."""
_MAX_KNOWN, _MAX_KNOWN_CHARS = 256, 4096
"""Texts around a state and instructions that are kept, and the characters of the longest."""
_PASSES_ON = (nodes.Template, nodes.Output, nodes.If, nodes.For)
"""Statements that write what is in them as it is; blocks of filters, say, do not."""


class Shown(NamedTuple):
    """A question as it is shown to the model once.

    Attributes:
        order: the options in the order in which they are shown.
        labels: the label of each option, in the order shown.
        kind: what labels are.
    """

    question: Question
    order: Sequence[int]
    labels: Sequence[str]
    kind: Labels


class Wording:
    """Writes what the model is asked.

    Args:
        source: a Jinja template; see `WORDING`.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(source)
        parsed = environment.parse(source)
        self._copies_question = _copies(parsed, "question")
        self._copies_both = self._copies_question and _copies(parsed, "state", may_test=True)
        self._known: OrderedDict[Hashable, str] = OrderedDict()
        self._lock = threading.Lock()

    def content(self, state: str, shown: Shown) -> str:
        """The user's message of one question; raises `ApiError` for what the template refuses."""
        return self._render(shown.question.instructions, state, shown).strip()

    def around(self, state: str, shown: Shown) -> list[str] | None:
        """The texts between which the instructions stand in what `content` gives, not stripped.

        So questions that differ in their instructions alone are worded once. None where the
        template does more with the instructions than write them.
        """
        return self._render(_MARK, state, shown).split(_MARK) if self._copies_question else None

    def _render(self, instructions: str, state: str, shown: Shown) -> str:
        if not self._copies_both:
            return self._rendered(instructions, state, shown)
        # Whether there is a state is all that the template asks of it.
        blank = self._blank(_STATE_MARK if state else "", shown)
        return blank.replace(_STATE_MARK, state).replace(_MARK, instructions)

    def _blank(self, state: str, shown: Shown) -> str:
        """What is written with marks in place of the state and the instructions, remembered."""
        question, order, labels, kind = shown
        key = (state, question.kind, question.options, tuple(order), tuple(labels), kind)
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        blank = self._rendered(_MARK, state, shown)
        if len(blank) <= _MAX_KNOWN_CHARS:
            with self._lock:
                self._known[key] = blank
                if len(self._known) > _MAX_KNOWN:
                    self._known.popitem(last=False)
        return blank

    def _rendered(self, instructions: str, state: str, shown: Shown) -> str:
        question, order, labels, kind = shown
        is_named = question.kind != "predicate" and kind == "letters"
        texts = question.texts()
        options = [
            {
                "label": label if is_named else "",
                "text": texts[option],
                "description": question.options[option].description,
            }
            for option, label in zip(order, labels, strict=True)
        ]
        try:
            return self._template.render(
                state=state,
                kind=question.kind,
                question=instructions,
                options=options if question.shows_options else [],
                answers=labels,
                labels=kind,
            )
        except TemplateError as error:
            raise bad_request(question.place, f"the decision template refused: {error}") from error


def _copies(node: nodes.Node, name: str, *, may_test: bool = False) -> bool:
    """Whether a part of a template does nothing with a variable but write its value as it is.

    Args:
        may_test: it may also ask whether the value is empty.
    """
    if isinstance(node, nodes.Name):
        return node.name != name
    if not isinstance(node, _PASSES_ON):
        return all(each.name != name for each in node.find_all(nodes.Name))
    copies = isinstance(node, nodes.Output)
    tested = node.test if may_test and isinstance(node, nodes.If) else None
    return all(
        (isinstance(child, nodes.Name) and (copies or child is tested))
        or _copies(child, name, may_test=may_test)
        for child in node.iter_child_nodes()
    )
