"""Formats of replies."""

from __future__ import annotations

from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["kind", "sizes"],
    "additionalProperties": False,
}

FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
