"""Exchanges between a user and an assistant: whether a call or an answer is right."""

import json
import random
from typing import Any

from demo import topics
from demo.decisions import words
from demo.decisions.decision import Asked, choice, predicate, score
from demo.dialogues import ADD, MULTIPLY, WEATHER
from server.endpoints.decisions.question import Option

TOOLS = (ADD, MULTIPLY, WEATHER)


def exchange_stated(draw: random.Random) -> tuple[str, Asked]:
    """An exchange as `/v1/decisions` shows a conversation, and one question about it."""
    ask = draw.choice((_call, _call, _answer, _graded, _better))
    return ask(draw)


def _call(draw: random.Random) -> tuple[str, Asked]:
    """Whether a call does what the user asked for; a wrong one has another tool or argument."""
    tool, question, arguments, others = _task(draw)
    is_right = draw.random() < 0.5
    called = tool
    if not is_right:
        if draw.random() < 0.35:
            called = draw.choice([each for each in (*TOOLS, *topics.OTHER_TOOLS) if each != tool])
        else:
            wrong = draw.choice(list(arguments))
            arguments = arguments | {wrong: others[wrong]}
    state = f"user: {question}\nassistant calls {called}: {json.dumps(arguments)}"
    inverse = draw.random() < 0.25
    claims = words.WRONG_CALL_CLAIMS if inverse else words.RIGHT_CALL_CLAIMS
    thought = f"The call must be {tool}" + ("." if is_right else ", and it is not this one.")
    asked = predicate(
        draw, draw.choice(claims), holds=is_right != inverse, content=question, thought=thought
    )
    return state, asked


def _task(draw: random.Random) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """A tool, a question for it, its arguments, and wrong values for these."""
    tool = draw.choice(TOOLS)
    if tool == WEATHER:
        place, other = draw.sample(topics.CITIES, 2)
        question = draw.choice(topics.WEATHER_QUESTIONS).format(place=place)
        return tool, question, {"city": place}, {"city": other}
    a, b = draw.sample(range(2, 1000), 2)
    phrases = topics.ADD_QUESTIONS if tool == ADD else topics.MULTIPLY_QUESTIONS
    question = draw.choice(phrases).format(a=a, b=b)
    c, d = draw.sample([n for n in range(2, 1000) if n not in (a, b)], 2)
    return tool, question, {"a": a, "b": b}, {"a": c, "b": d}


def _capital(draw: random.Random) -> tuple[str, str, str, str]:
    """A country, a question for its capital, the capital, and another one."""
    country, capital = draw.choice(list(topics.CAPITALS.items()))
    other = draw.choice([city for city in topics.CAPITALS.values() if city != capital])
    return country, draw.choice(topics.CAPITAL_QUESTIONS).format(country=country), capital, other


def _reply(draw: random.Random, country: str, city: str) -> str:
    return draw.choice((f"The capital of {country} is {city}.", f"{city}.", f"It is {city}."))


def _answer(draw: random.Random) -> tuple[str, Asked]:
    country, question, capital, other = _capital(draw)
    is_right = draw.random() < 0.5
    city = capital if is_right else other
    state = f"user: {question}\nassistant: {_reply(draw, country, city)}"
    inverse = draw.random() < 0.25
    claims = words.WRONG_ANSWER_CLAIMS if inverse else words.RIGHT_ANSWER_CLAIMS
    asked = predicate(
        draw,
        draw.choice(claims),
        holds=is_right != inverse,
        content=f"{question} {city}",
        thought=f"The capital of {country} is {capital}.",
    )
    return state, asked


def _graded(draw: random.Random) -> tuple[str, Asked]:
    country, question, capital, other = _capital(draw)
    level = draw.randrange(len(words.ANSWER_LEVELS))
    replies = (_reply(draw, country, other), topics.UNKNOWN, _reply(draw, country, capital))
    state = f"user: {question}\nassistant: {replies[level]}"
    asked = score(
        draw.choice(words.ANSWER_QUESTIONS),
        words.ANSWER_LEVELS,
        level,
        content=f"{question} {replies[level]}",
        thought=f"The capital of {country} is {capital}.",
    )
    return state, asked


def _better(draw: random.Random) -> tuple[str, Asked]:
    """Which of some cities is the capital that the user asks for."""
    country, question, capital, _ = _capital(draw)
    others = [city for city in topics.CAPITALS.values() if city != capital]
    cities = [capital, *draw.sample(others, draw.randint(1, 5))]
    asked = choice(
        draw,
        draw.choice(words.BETTER_QUESTIONS),
        [Option(city) for city in cities],
        content=f"{question} {' '.join(cities[:2])}",
        thought=f"The capital of {country} is {capital}.",
    )
    return draw.choice((question, f"user: {question}")), asked
