"""The JSON Schema Test Suite, from the source of the `jsonschema` package, which ships it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.clients.environments import source_of

PACKAGE = "jsonschema==4.26.0"
DRAFT = "draft2020-12"


@dataclass(frozen=True)
class SuiteCase:
    """A schema of the suite, and what is valid under it.

    Attributes:
        name: its file and what it is about.
        is_required: whether every validator must pass it; formats, for one, are optional.
        instances: values, and whether they are valid.
    """

    name: str
    is_required: bool
    schema: Any
    instances: list[tuple[Any, bool]]


def schema_suite() -> list[SuiteCase]:
    """All cases of the newest draft; the test that asks is skipped where none can be had."""
    return list(_cases())


def _cases() -> Iterator[SuiteCase]:
    folder = source_of(PACKAGE) / "json" / "tests" / DRAFT
    for path in sorted(folder.rglob("*.json")):
        file = path.relative_to(folder)
        for case in json.loads(path.read_text()):
            yield SuiteCase(
                name=f"{file}: {case['description']}",
                is_required=file.parts[0] != "optional",
                schema=case["schema"],
                instances=[(test["data"], test["valid"]) for test in case["tests"]],
            )


def names_a_keyword(param: str, schema: Any) -> bool:
    """Whether a refusal's `param` ends with a keyword of the schema, or the schema is `false`."""
    return schema is False or f'"{param.rsplit(".", 1)[-1]}"' in json.dumps(schema)
