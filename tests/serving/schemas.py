"""JSON schemas at random: most can be enforced, some hold a keyword that cannot."""

from __future__ import annotations

import random
from typing import Any

NOT_ENFORCED = {
    "not": {"pattern": "^a"},
    "uniqueItems": True,
    "contains": {"type": "integer"},
    "propertyNames": {"format": "date"},
    "dependentRequired": {"a": "b"},
    "if": {"pattern": "^a"},
    "then": {"type": "string"},
    "unevaluatedProperties": False,
}
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname")
WORDS = ("a", "name", "two words", 'quo"ted', "ünï", "x-y", "")


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema at most so deep; a few in a hundred cannot be enforced."""
    schema = _made(rng, depth)
    if rng.random() < 0.02:
        keyword = rng.choice(sorted(NOT_ENFORCED))
        schema[keyword] = NOT_ENFORCED[keyword]
    return schema


def _made(rng: random.Random, depth: int) -> dict[str, Any]:
    scalars = [_string, _string, _number, _enum, _const, _simple]
    inner = [_object, _object, _array, _any_of, _tuple, _reference]
    makers = scalars if depth == 0 else [*scalars[1:], *inner]
    return rng.choice(makers)(rng, depth)


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    match rng.randrange(5):
        case 0:
            schema["minLength"] = rng.randrange(4)
            schema["maxLength"] = schema["minLength"] + rng.randrange(6)
        case 1:
            schema["pattern"] = rng.choice(
                ["^[a-c]{1,4}$", "^\\d{2}-\\d{2}$", "^(x|yy)?$", "^\\w{2,5}$"]
            )
        case 2:
            schema["format"] = rng.choice(FORMATS)
    return schema


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": rng.choice(["integer", "number"])}
    low = rng.randrange(-100, 100)
    match rng.randrange(5):
        case 0:
            schema |= {"minimum": low, "maximum": low + rng.randrange(1, 50)}
        case 1:
            schema |= {"exclusiveMinimum": low, "exclusiveMaximum": low + rng.randrange(2, 50)}
        case 2:
            schema |= {"type": "integer", "multipleOf": rng.choice([2, 5, 7, 10])}
    return schema


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    values: list[Any] = [*WORDS, 0, 1, -3, 2.5, True, None, [1, "a"], {"k": []}]
    return {"enum": rng.sample(values, rng.randrange(1, 5))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice([*WORDS, 7, False, None, [[]], {"a": 1, "b": [True]}])}


def _simple(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["null", "boolean", ["string", "null"], ["integer", "boolean"]])}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randrange(1, 5))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    if rng.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(3)
    schema = {"type": "array", "items": random_schema(rng, depth - 1), "minItems": least}
    return schema | {"maxItems": least + rng.randrange(3)}


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    items = [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def _reference(rng: random.Random, depth: int) -> dict[str, Any]:
    """A list that goes on as long as the model likes."""
    node = {
        "type": "object",
        "properties": {
            "value": {"type": rng.choice(["integer", "boolean"])},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    # References are read from the root: only there are they what they mean.
    return {"$ref": "#/$defs/node", "$defs": {"node": node}} if depth == 3 else node_free(rng)


def node_free(rng: random.Random) -> dict[str, Any]:
    """What stands for a reference below the root."""
    return {"type": "object", "additionalProperties": {"type": rng.choice(["integer", "null"])}}
