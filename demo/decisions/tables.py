"""Tables of two columns in three formats, and questions about one of their rows.

Keys and values stand after a blank everywhere: a word at the beginning of a line is another token.
"""

import random

from demo import topics
from demo.decisions import words
from demo.decisions.decision import Asked, choice, predicate
from demo.decisions.words import Table
from server.endpoints.decisions.question import Option

TABLES = (words.weather_table(topics.CITIES, topics.SKIES), *words.OTHER_TABLES)
MAX_ROWS = 5
MAX_OPTIONS = 4


def table_stated(draw: random.Random) -> tuple[str, Asked]:
    """A table as text, and one question about it."""
    table = draw.choice(TABLES)
    keys = draw.sample(table.keys, draw.randint(2, MAX_ROWS))
    rows = {key: draw.choice(table.values) for key in keys}
    ask = draw.choice((_claim, _claim, _value))
    return _text(draw, table, rows), ask(draw, table, rows)


def _claim(draw: random.Random, table: Table, rows: dict[str, str]) -> Asked:
    key, holds = draw.choice(list(rows)), draw.random() < 0.5
    value = rows[key]
    if not holds:
        seen = [other for other in rows.values() if other != value]
        others = [other for other in table.values if other != value]
        value = draw.choice(seen if seen and draw.random() < 0.6 else others)
    claim = draw.choice(table.claims).format(key=key, value=value)
    thought = f"The table says {rows[key]}."
    return predicate(draw, claim, holds=holds, content=f"{key} {value}", thought=thought)


def _value(draw: random.Random, table: Table, rows: dict[str, str]) -> Asked:
    key = draw.choice(list(rows))
    value = rows[key]
    others = [other for other in table.values if other != value]
    number = draw.randint(1, MAX_OPTIONS - 1)
    options = [Option(each) for each in (value, *draw.sample(others, number))]
    question = draw.choice(table.of_value).format(key=key)
    thought = f"The table says {value}."
    return choice(draw, question, options, content=f"{key} {value}", thought=thought)


def _text(draw: random.Random, table: Table, rows: dict[str, str]) -> str:
    """The table in one of three formats."""
    first, second = table.fields
    match draw.randrange(3):
        case 0:
            return "\n".join(f"- {key}: {value}" for key, value in rows.items())
        case 1:
            lines = [f"| {first} | {second} |", "| --- | --- |"]
            return "\n".join([*lines, *(f"| {k} | {v} |" for k, v in rows.items())])
        case _:
            return " ".join(table.line.format(key=k, value=v) for k, v in rows.items())
