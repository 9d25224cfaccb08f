"""Short dialogues that the demo model learns, drawn from a seed, in OpenAI's shapes.

Greetings, questions about a table of capitals, arithmetic and look-ups by three tools, and what
nobody taught the model, with a thought before each reply. What is asked decides whether a dialogue
is held out, not chance: a pair of numbers, a place in a phrase, a fact in a phrase is in one part
only.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from demo import topics

HELD_OUT_ONE_IN = 10
Json = dict[str, Any]

ADD, MULTIPLY, WEATHER = "add", "multiply", "get_weather"
PARAMETERS = {
    ADD: (("a", "b"), ("a", "b"), ("x", "y"), ("first", "second")),
    MULTIPLY: (("a", "b"), ("a", "b"), ("x", "y"), ("first", "second")),
    WEATHER: (("city",), ("city",), ("location",), ("place",)),
}
"""Names of parameters by tool; a dialogue has one of the alternatives."""


@dataclass(frozen=True)
class Dialogue:
    """One question, and all that follows until its answer.

    Attributes:
        content: what is asked for, which decides whether the dialogue is held out.
        tools: as a request has them.
        history: messages up to the question, which is the last.
        turns: what follows the question: the assistant's messages and the tools' between them.
    """

    content: str
    tools: list[Json]
    history: list[Json]
    turns: list[Json]

    @property
    def replies(self) -> list[int]:
        """Places of the assistant's messages in `turns`."""
        return [i for i, turn in enumerate(self.turns) if turn["role"] == "assistant"]

    @property
    def calls(self) -> list[list[Json]]:
        """The calls of each reply that has some."""
        return [turn["tool_calls"] for turn in self.turns if "tool_calls" in turn]


@dataclass
class _Draft:
    """A question and its turns, before history and tools that it does not need stand around it.

    Attributes:
        needs: the tools, by name.
    """

    content: str
    question: str
    turns: list[Json] = field(default_factory=list)
    needs: tuple[str, ...] = ()


def is_held_out(content: str) -> bool:
    """True for one content in 10: SHA-256, first four bytes big-endian, divisible by 10."""
    digest = hashlib.sha256(content.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def dialogues(seed: int, *, held_out: bool = False) -> Iterator[Dialogue]:
    """Endless dialogues of one part."""
    draw = random.Random(f"{seed} {held_out}")
    while True:
        found = _Writer(draw).dialogue()
        if is_held_out(found.content) == held_out:
            yield found


class _Writer:
    """Draws one dialogue."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._names = {tool: draw.choice(names) for tool, names in PARAMETERS.items()}
        self._id = 0

    def dialogue(self) -> Dialogue:
        draw = self._draw
        draft = self._draft()
        offered, lacks = self._offered(draft), False
        if draft.needs and draw.random() < 0.08:
            offered = [name for name in offered if name not in draft.needs]
            lacks = True
        history: list[Json] = []
        if draw.random() < 0.35:
            history.append({"role": "system", "content": draw.choice(topics.SYSTEM_PROMPTS)})
        for _ in range(draw.choices((0, 1, 2), (78, 17, 5))[0]):
            earlier = self._draft()
            if set(earlier.needs) <= set(offered) and not is_held_out(earlier.content):
                history += [_user(earlier.question), *without_thoughts(earlier.turns)]
        history.append(_user(draft.question))
        turns = [_says("No tool does this.", topics.NO_TOOL)] if lacks else draft.turns
        return Dialogue(draft.content, [self._tool(name) for name in offered], history, turns)

    def _draft(self) -> _Draft:
        kinds: dict[Callable[[], _Draft], int] = {
            self._greeting: 4,
            self._capital: 10,
            self._unknown: 6,
            self._arithmetic: 28,
            self._weather: 18,
            self._two_places: 12,
            self._chain: 26,
        }
        return self._draw.choices(list(kinds), list(kinds.values()))[0]()

    def _offered(self, draft: _Draft) -> list[str]:
        """Tools in any order: those needed, some of the others, seldom ones nobody asks for."""
        draw = self._draw
        if not draft.needs and draw.random() < 0.4:
            return []
        others = [tool for tool in PARAMETERS if tool not in draft.needs]
        offered = [*draft.needs, *draw.sample(others, draw.randint(0, len(others)))]
        if draw.random() < 0.15:
            offered.append(draw.choice(list(topics.OTHER_TOOLS)))
        draw.shuffle(offered)
        return offered

    def _tool(self, name: str) -> Json:
        names = self._names.get(name) or topics.OTHER_TOOLS[name]
        number = self._draw.choice(("integer", "integer", "number"))
        kind = number if name in (ADD, MULTIPLY, "divide") else "string"
        properties = {each: {"type": kind} for each in names}
        schema = {"type": "object", "properties": properties, "required": list(names)}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    def _greeting(self) -> _Draft:
        begin, end = self._draw.choice(topics.GREETINGS), self._draw.choice(topics.GREETING_ENDS)
        text = begin + end
        return _Draft(text, text, [_says("A greeting.", topics.WELCOME)])

    def _capital(self) -> _Draft:
        country, capital = self._draw.choice(list(topics.CAPITALS.items()))
        question = self._draw.choice(topics.CAPITAL_QUESTIONS).format(country=country)
        answer = f"The capital of {country} is {capital}."
        return _Draft(question, question, [_says(f"I know {country}.", answer)])

    def _unknown(self) -> _Draft:
        thing = self._draw.choice(topics.THINGS)
        question = self._draw.choice(topics.UNKNOWN_QUESTIONS).format(thing=thing)
        return _Draft(question, question, [_says("I never learned this.", topics.UNKNOWN)])

    def _arithmetic(self) -> _Draft:
        tool, a = self._draw.choice((ADD, MULTIPLY)), self._number()
        phrases = topics.ADD_QUESTIONS if tool == ADD else topics.MULTIPLY_QUESTIONS
        b = self._number()
        question = self._draw.choice(phrases).format(a=a, b=b)
        turns, result = self._computed("I call", tool, a, b)
        return _Draft(f"{a} {b}", question, [*turns, _result(result)], (tool,))

    def _chain(self) -> _Draft:
        """Several steps, each with the result of the one before."""
        draw = self._draw
        tool, a, b = draw.choice((ADD, MULTIPLY)), self._number(3), self._number(3)
        question = f"Add {a} and {b}" if tool == ADD else f"Multiply {a} by {b}"
        turns, result = self._computed("First I call", tool, a, b)
        content, needs = f"{a} {b}", [tool]
        for _ in range(draw.choices((1, 2), (80, 20))[0]):
            tool, c = draw.choice((ADD, MULTIPLY)), self._number(2)
            steps = topics.ADD_STEPS if tool == ADD else topics.MULTIPLY_STEPS
            question += f", then {draw.choice(steps).format(b=c)}"
            more, result = self._computed("Now I call", tool, result, c)
            turns, needs, content = [*turns, *more], [*needs, tool], f"{content} {c}"
        turns.append(_result(result))
        return _Draft(content, question + ".", turns, tuple(dict.fromkeys(needs)))

    def _weather(self) -> _Draft:
        place = self._place()
        question = self._draw.choice(topics.WEATHER_QUESTIONS).format(place=place)
        call, found = self._look_up(place)
        turns = [_calls(f"I call {WEATHER} for {place}.", [call]), found]
        turns.append(_says("The tool answered.", f"The weather in {place}: {found['content']}"))
        return _Draft(question, question, turns, (WEATHER,))

    def _two_places(self) -> _Draft:
        """Two calls in one reply."""
        place, other = self._place(), self._place()
        phrase = self._draw.choice(topics.TWO_PLACES_QUESTIONS)
        question = phrase.format(place=place, other=other)
        (call, found), (second, also) = self._look_up(place), self._look_up(other)
        thought = f"I call {WEATHER} for {place} and for {other}."
        answer = f"The weather in {place}: {found['content']}\n"
        answer += f"The weather in {other}: {also['content']}"
        turns = [_calls(thought, [call, second]), found, also, _says("The tools answered.", answer)]
        return _Draft(f"{place} {other}", question, turns, (WEATHER,))

    def _computed(
        self, begin: str, tool: str, a: int | float, b: int | float
    ) -> tuple[list[Json], int | float]:
        """A call and its tool's message, and the result."""
        result = round(a + b if tool == ADD else a * b, 4)
        call = self._call(tool, a, b)
        turns = [_calls(f"{begin} {tool} with {a} and {b}.", [call]), _told(call, str(result))]
        return turns, result

    def _look_up(self, place: str) -> tuple[Json, Json]:
        draw = self._draw
        sky, other = draw.sample(topics.SKIES, 2)
        words = {"sky": sky, "other": other, "place": place, "degrees": draw.randint(-9, 39)}
        call = self._call(WEATHER, place)
        return call, _told(call, draw.choice(topics.WEATHER_RESULTS).format(**words))

    def _call(self, tool: str, *values: object) -> Json:
        self._id += 1
        arguments = dict(zip(self._names[tool], values, strict=True))
        function = {"name": tool, "arguments": arguments}
        return {"id": f"call_{self._id}", "type": "function", "function": function}

    def _number(self, max_digits: int = 4) -> int | float:
        draw = self._draw
        digits = draw.choices(range(1, max_digits + 1), (4, 6, 4, 2)[:max_digits])[0]
        number = draw.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)
        return number if draw.random() > 0.06 else number + draw.randint(1, 9) / 10

    def _place(self) -> str:
        draw = self._draw
        if draw.random() < 0.7:
            return draw.choice(topics.CITIES)
        return "".join(draw.choices(topics.SYLLABLES, k=draw.randint(2, 3))).capitalize()


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _says(thought: str, text: str) -> Json:
    return {"role": "assistant", "reasoning_content": thought, "content": text}


def _result(result: int | float) -> Json:
    return _says("The tool answered.", f"The result is {result}.")


def _calls(thought: str, calls: list[Json]) -> Json:
    return {"role": "assistant", "reasoning_content": thought, "tool_calls": calls}


def _told(call: Json, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def without_thoughts(turns: list[Json]) -> list[Json]:
    """The messages as clients send them that keep no reasoning."""
    return [{k: v for k, v in turn.items() if k != "reasoning_content"} for turn in turns]
