"""The words in which a state and a question are put to the model: one Jinja template."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import TemplateError
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


class Wording:
    """Writes what the model is asked.

    Args:
        source: a Jinja template; see `WORDING`.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(source)

    def content(
        self,
        state: str,
        question: Question,
        order: Sequence[int],
        labels: Sequence[str],
        kind: Labels,
    ) -> str:
        """The user's message of one question; raises `ApiError` for what the template refuses.

        Args:
            order: the options in the order in which they are shown.
            labels: the label of each option, in the order shown.
            kind: what labels are.
        """
        is_named = question.kind != "predicate" and kind == "letters"
        texts = question.texts()
        shown = [
            {
                "label": label if is_named else "",
                "text": texts[option],
                "description": question.options[option].description,
            }
            for option, label in zip(order, labels, strict=True)
        ]
        try:
            text = self._template.render(
                state=state,
                kind=question.kind,
                question=question.instructions,
                options=shown if question.shows_options else [],
                answers=labels,
                labels=kind,
            )
        except TemplateError as error:
            raise bad_request(question.place, f"the decision template refused: {error}") from error
        return text.strip()
