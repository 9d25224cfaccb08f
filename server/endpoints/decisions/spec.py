"""Questions about a state as prompts that share it, and the labels that are read after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from engine.contracts.info import EngineInfo
from server.endpoints.decisions.question import (
    Kind,
    Labels,
    Option,
    Question,
    Reading,
    State,
    orders,
)
from server.endpoints.decisions.wording import Shown, Wording
from server.errors import ApiError, bad_request
from server.schema.base import shown
from server.schema.ids import IdLists
from server.scoring.frames import ReplyFrame
from server.scoring.label_texts import UnreadableLabelError, ended, tree_of
from server.scoring.labels import Label, LabelError, LabelTree
from server.scoring.readers import PromptReaders
from server.scoring.spec import ScoringSpec
from server.text.shared_prefix import PrefixedTexts

CHARS_A_TOKEN = 8
"""Prompts may have so many characters for each token that may be computed; texts have some four."""


class Read(NamedTuple):
    """One prompt: a question with its options in one order.

    Attributes:
        question: its index.
        options: the option that each label of the prompt's tree stands for.
        thought: what the model thought about it; None where it was not asked to think.
    """

    question: int
    options: tuple[int, ...]
    thought: str | None = None


class AskedPrompt(NamedTuple):
    """One prompt in words, with the whole state.

    Attributes:
        names: the label of each option in the order of `read.options`.
        content: the message that asks the question.
    """

    read: Read
    names: tuple[str, ...]
    content: str

    def after(self, thought: str) -> AskedPrompt:
        """The same after a thought."""
        return self._replace(read=self.read._replace(thought=thought))


class _Worded(NamedTuple):
    """What is asked beside the instructions: `order` of the options, and as of `AskedPrompt`.

    Attributes:
        around: the texts around the instructions, as of `Wording.around`.
    """

    order: tuple[int, ...]
    names: tuple[str, ...]
    around: list[str] | None


@dataclass(frozen=True, slots=True)
class DecisionPrompts:
    """The prompts of a request.

    Attributes:
        reads: what each item of `spec` is.
    """

    spec: ScoringSpec
    reads: list[Read]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the items, and of the query once."""
        return len(self.spec.query) + len(self.spec.items.token_ids)


@dataclass(frozen=True, slots=True)
class DecisionReader:
    """Makes prompts of questions.

    Attributes:
        max_tokens: the most tokens that the prompts of a request may have together.
    """

    readers: PromptReaders
    wording: Wording
    info: EngineInfo
    max_tokens: int

    async def framed(
        self, state: State, questions: Sequence[Question], reading: Reading
    ) -> tuple[State, ReplyFrame]:
        """What the chat template writes around each message, and the state for it.

        A system's message that the template does not have begins the state.
        """
        thinks = reading.budget is not None
        find, variables = partial(self.readers.frames.frame, thinks=thinks), reading.variables
        if state.system is not None:
            try:
                return state, await find(
                    self._probe(state, questions), state.system, variables, state.place
                )
            except ApiError:
                state = State(f"{state.system}\n\n{state.text}", None, state.place)
        return state, await find(self._probe(state, questions), None, variables, state.place)

    def _probe(self, state: State, questions: Sequence[Question]) -> str:
        """A message as those of the request are."""
        question = questions[0]
        order = range(len(question.options))
        as_shown = Shown(question, order, question.texts(), "letters")
        content = self.wording.content(state.text, as_shown)
        self._check_least(content, state, question)
        return content

    def asked(
        self, state: State, frame: ReplyFrame, questions: Sequence[Question], reading: Reading
    ) -> list[AskedPrompt]:
        """Every question in every order; raises `ApiError`."""
        asked: list[AskedPrompt] = []
        num_chars = len(state.text)
        worded: dict[tuple[Kind, tuple[Option, ...]], list[_Worded]] = {}
        for index, question in enumerate(questions):
            alike = question.kind, question.options
            if alike not in worded:
                worded[alike] = list(self._worded(state, question, frame, reading))
            for order, names, around in worded[alike]:
                if around is None:
                    as_shown = Shown(question, order, names, reading.labels)
                    content = self.wording.content(state.text, as_shown)
                else:
                    content = question.instructions.join(around).strip()
                num_chars += max(len(content) - len(state.text), 0)
                if num_chars > CHARS_A_TOKEN * self.max_tokens:
                    most = CHARS_A_TOKEN * self.max_tokens
                    raise self._too_many(f"more than {most} characters")
                asked.append(AskedPrompt(Read(index, order), names, content))
        return asked

    def _worded(
        self, state: State, question: Question, frame: ReplyFrame, reading: Reading
    ) -> Iterator[_Worded]:
        """What questions of one kind with the same options share, in every order of these."""
        for order in orders(len(question.options), reading.num_orders, reading.seed):
            names = self._names(question, order, frame, reading.labels)
            as_shown = Shown(question, order, names, reading.labels)
            yield _Worded(order, names, self.wording.around(state.text, as_shown))

    def openings(self, asked: Sequence[AskedPrompt], frame: ReplyFrame) -> PrefixedTexts:
        """Each prompt up to the thought that it opens."""
        return self.readers.prefixes.encode(
            [f"{frame.head}{each.content}{frame.tail}" for each in asked]
        )

    def prompts(
        self,
        asked: Sequence[AskedPrompt],
        state: State,
        frame: ReplyFrame,
        questions: Sequence[Question],
        reading: Reading,
    ) -> DecisionPrompts:
        """The prompts as ids, and the labels' trees; raises `ApiError`."""
        reads = [each.read for each in asked]
        tails = [frame.end(read.thought or "") for read in reads]
        known: dict[tuple[str, tuple[str, ...]], LabelTree] = {}
        trees = []
        for each, tail in zip(asked, tails, strict=True):
            end = self.readers.labels.end(each.content, tail)
            if (tree := known.get((end, each.names))) is None:
                question = questions[each.read.question]
                tree = known[end, each.names] = self._tree(
                    question, each, end, frame, reading.labels
                )
            trees.append(tree)
        texts = [
            f"{frame.head}{each.content}{tail}" for each, tail in zip(asked, tails, strict=True)
        ]
        begin = len(frame.head) + len(state.text)
        spec = self._spec(texts, trees, reading, begin)
        self._check(spec, reads, questions, state)
        return DecisionPrompts(spec, reads)

    def _names(
        self, question: Question, order: Sequence[int], frame: ReplyFrame, labels: Labels
    ) -> tuple[str, ...]:
        """The label of each option in the order in which they are shown."""
        if labels == "options" or question.kind == "predicate":
            texts = question.texts()
            return tuple(texts[option] for option in order)
        if question.kind == "score":
            return tuple(map(str, order))
        return self.readers.labels.codes(frame.end(), frame.space, len(order))

    def _tree(
        self, question: Question, asked: AskedPrompt, end: str, frame: ReplyFrame, kind: Labels
    ) -> LabelTree:
        """The tree of the labels after a prompt with this end; raises `ApiError`."""
        try:
            ids = self.readers.labels.ids(end, [frame.space + name for name in asked.names])
            if kind == "options":
                ids = ended(ids, self._after(end, frame))
            return tree_of(tuple(ids))
        except UnreadableLabelError as error:
            place = f"{question.options_place}[{asked.read.options[error.index]}]"
            name = shown(asked.names[error.index])
            raise bad_request(place, f"{place} cannot be read as {name}: {error}") from None
        except LabelError as error:
            place = question.options_place
            raise bad_request(
                place, f"{place} cannot be told apart by their tokens, which {error}"
            ) from None

    def _after(self, end: str, frame: ReplyFrame) -> Label:
        """The token that ends an option which begins another one."""
        after = self.readers.labels.after(end, frame.space, frame.after) if frame.after else ()
        return after or self.info.eos_token_ids[:1]

    def _spec(
        self, texts: Sequence[str], trees: Sequence[LabelTree], reading: Reading, begin: int
    ) -> ScoringSpec:
        """The prompts as ids; other requests may have their first `begin` characters too."""
        prefixed = self.readers.prefixes.encode(texts, begin, reading.cache_salt)
        distinct = {id(tree): tree for tree in trees}
        numbers = {key: number for number, key in enumerate(distinct)}
        lens = np.array([len(rest) for rest in prefixed.rests], dtype=np.int32)
        return ScoringSpec(
            query=prefixed.prefix,
            items=IdLists(np.concatenate(prefixed.rests), lens),
            trees=list(distinct.values()),
            tree_of_item=np.array([numbers[id(tree)] for tree in trees]),
            priority=reading.priority,
            cache_salt=reading.cache_salt,
        )

    def _check_least(self, content: str, state: State, question: Question) -> None:
        """Refuse a message that is too long for certain, before it is tokenized."""
        at_least = self.readers.min_tokens(content)
        if at_least > self.info.max_model_len:
            place = state.place if len(state.text) > len(content) // 2 else question.place
            raise self._too_long(place, state, question, f"at least {at_least}")

    def _check(
        self, spec: ScoringSpec, reads: Sequence[Read], questions: Sequence[Question], state: State
    ) -> None:
        """Refuse what the context does not hold, and what is too much for one request."""
        limit = self.info.max_model_len
        if spec.longest > limit:
            question = questions[reads[int(spec.items.lens.argmax())].question]
            place = state.place if len(spec.query) > limit // 2 else question.place
            raise self._too_long(place, state, question, str(spec.longest))
        if (total := len(spec.query) + len(spec.items.token_ids)) > self.max_tokens:
            raise self._too_many(f"{total}")

    def _too_long(self, place: str, state: State, question: Question, got: str) -> ApiError:
        return bad_request(
            place,
            f"{state.place} and {question.place} must fit into the context of "
            f"{self.info.max_model_len} tokens (--max-model-len) with the longest label, got {got} "
            "tokens",
            "context_length_exceeded",
        )

    def _too_many(self, got: str) -> ApiError:
        return bad_request(
            "questions",
            f"questions, in every order of their options, must have at most {self.max_tokens} "
            f"tokens together with one state (--max-scoring-tokens), got {got}",
            "too_many_tokens",
        )
