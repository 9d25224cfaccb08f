"""Two tools, what was asked of them, and the line that reports it, for programs of this folder."""

from __future__ import annotations

import json
import sys
from typing import Any

CALLS: list[list[Any]] = []
"""Every call that was made: the tool's name and its two numbers."""


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    CALLS.append(["add", a, b])
    return str(a + b)


def multiply(a: int, b: int) -> str:
    """Multiply two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    CALLS.append(["multiply", a, b])
    return str(a * b)


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = {"add": add, "multiply": multiply}
RESPONSES_TOOLS: Any = [
    {
        "type": "function",
        "name": name,
        "description": f"To {name} two numbers.",
        "strict": False,
        "parameters": PARAMETERS,
    }
    for name in TOOLS
]
"""The same as Responses have them."""


def run(name: str, arguments: str | dict[str, Any]) -> str:
    """Run a tool; its arguments may be JSON."""
    values = json.loads(arguments) if isinstance(arguments, str) else arguments
    return TOOLS[name](**values)


def arguments() -> tuple[str, str, str]:
    """The address, the model and the question that the program is given."""
    base_url, model, question = sys.argv[1:4]
    return base_url, model, question


FOUND: dict[str, Any] = {}


def note(name: str, answer: object) -> None:
    """Note an answer with the calls that led to it."""
    FOUND[name] = {"answer": str(answer), "calls": CALLS.copy()}
    CALLS.clear()


def report() -> None:
    """Print what was noted as the last line."""
    print(json.dumps(FOUND))
