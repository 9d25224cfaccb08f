"""References of a schema into itself."""

from __future__ import annotations

from typing import Any

from server.structured.subschemas import Node


def target(schema: Node, reference: str) -> Any:
    """What a reference names; None for nothing, or for a reference that is no JSON pointer.

    The steps of a pointer are RFC 6901's.
    """
    if reference == "#":
        return schema
    if not reference.startswith("#/"):
        return None
    found: Any = schema
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
