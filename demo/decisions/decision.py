"""A question about a state, its right answer, and both in the words of `/v1/decisions`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from demo.dialogues import Dialogue
from server.endpoints.decisions.question import NO, YES, Labels, Option, Question
from server.endpoints.decisions.wording import WORDING, Shown, Wording

PREDICATE = (Option(YES), Option(NO))
DESCRIBED_ONE_IN = 8
_WORDING = Wording(WORDING)


@dataclass(frozen=True)
class Asked:
    """A question with its right answer.

    Attributes:
        answer: the index of the right option.
        content: what is asked for, which decides whether the decision is held out.
        thought: what leads to the answer.
    """

    question: Question
    answer: int
    content: str
    thought: str


@dataclass(frozen=True)
class Decision:
    """A state with one question.

    Attributes:
        family: "tickets", "tables" or "exchanges".
        order: the options in the order in which they are shown.
        system: the system's message, or None.
        labels: what the answer is read by.
    """

    family: str
    state: str
    asked: Asked
    order: tuple[int, ...]
    system: str | None
    labels: Labels

    @property
    def names(self) -> list[str]:
        """The label of each option in the order shown, as the server shows them."""
        question = self.asked.question
        if self.labels == "options" or question.kind == "predicate":
            return [question.texts()[option] for option in self.order]
        if question.kind == "score":
            return list(map(str, self.order))
        return list(ascii_uppercase[: len(self.order)])

    @property
    def label(self) -> str:
        """The label of the right answer: the whole reply."""
        return self.names[self.order.index(self.asked.answer)]

    @property
    def dialogue(self) -> Dialogue:
        """The decision as a dialogue of one question and one reply."""
        asked = self.asked
        shown = Shown(asked.question, self.order, self.names, self.labels)
        text = _WORDING.content(self.state, shown)
        history = [{"role": "user", "content": text}]
        if self.system is not None:
            history.insert(0, {"role": "system", "content": self.system})
        reply = {"role": "assistant", "reasoning_content": asked.thought, "content": self.label}
        return Dialogue(asked.content, [], history, [reply])


def predicate(
    draw: random.Random, instructions: str, *, holds: bool, content: str, thought: str
) -> Asked:
    """Ask whether something holds; sometimes the answers are described."""
    options = PREDICATE
    if draw.randrange(DESCRIBED_ONE_IN) == 0:
        options = (Option(YES, "it is so"), Option(NO, "it is not so"))
    question = Question("predicate", instructions, options, "", "")
    return Asked(question, 0 if holds else 1, content, thought)


def choice(
    draw: random.Random,
    instructions: str,
    options: Sequence[Option],
    *,
    content: str,
    thought: str,
) -> Asked:
    """Ask which option is right: the first one given; they are shown in any order."""
    order = draw.sample(range(len(options)), len(options))
    question = Question("choice", instructions, tuple(options[i] for i in order), "", "")
    return Asked(question, order.index(0), content, thought)


def score(
    instructions: str, levels: Sequence[str], level: int, *, content: str, thought: str
) -> Asked:
    """Ask for a level; the levels are shown from the lowest to the highest."""
    question = Question("score", instructions, tuple(map(Option, levels)), "", "")
    return Asked(question, level, content, thought)
