"""Tables of two columns in several formats, and questions about one of their rows."""

import json
import random

from demo import topics
from demo.decisions import words
from demo.decisions.decision import Asked, choice, predicate
from demo.decisions.words import Table
from server.endpoints.decisions.question import Option

TABLES = (words.weather_table(topics.CITIES, topics.SKIES), *words.OTHER_TABLES)
MAX_ROWS = 8
MAX_OPTIONS = 8


def table_stated(draw: random.Random) -> tuple[str, Asked]:
    """A table as text, and one question about it."""
    table = draw.choice(TABLES)
    keys = draw.sample(table.keys, draw.randint(2, MAX_ROWS))
    rows = {key: draw.choice(table.values) for key in keys}
    ask = draw.choice((_claim, _claim, _value, _key))
    asked = ask(draw, table, rows)
    return _text(draw, table, rows), asked


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
    number = draw.randint(1, min(len(others), MAX_OPTIONS - 1))
    options = [Option(each) for each in (value, *draw.sample(others, number))]
    question = draw.choice(table.of_value).format(key=key)
    thought = f"The table says {value}."
    return choice(draw, question, options, content=f"{key} {value}", thought=thought)


def _key(draw: random.Random, table: Table, rows: dict[str, str]) -> Asked:
    """Ask for a key; its value is no other row's."""
    key = draw.choice(list(rows))
    value = rows[key]
    remaining = [other for other in table.values if other != value]
    for other in rows:
        if other != key and rows[other] == value:
            rows[other] = draw.choice(remaining)
    options = [Option(each) for each in (key, *(other for other in rows if other != key))]
    question = draw.choice(table.of_key).format(value=value)
    thought = f"The table says {key}."
    return choice(draw, question, options, content=f"{key} {value}", thought=thought)


def _text(draw: random.Random, table: Table, rows: dict[str, str]) -> str:
    """The table in one of six formats."""
    first, second = table.fields
    match draw.randrange(6):
        case 0:
            return "\n".join(f"{key}: {value}" for key, value in rows.items())
        case 1:
            lines = [f"| {first} | {second} |", "| --- | --- |"]
            return "\n".join([*lines, *(f"| {k} | {v} |" for k, v in rows.items())])
        case 2:
            return "\n".join([f"{first},{second}", *(f"{k},{v}" for k, v in rows.items())])
        case 3:
            records = [{first: key, second: value} for key, value in rows.items()]
            return json.dumps(records, separators=draw.choice(((",", ":"), (", ", ": "))))
        case 4:
            return json.dumps(rows, separators=draw.choice(((",", ":"), (", ", ": "))))
        case _:
            return " ".join(table.line.format(key=k, value=v) for k, v in rows.items())
