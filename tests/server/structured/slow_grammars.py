"""Grammars that take long."""

from __future__ import annotations

NEVER_ENDS = {"type": "integer", "multipleOf": 99999999}
"""Its automaton has as many states, of which llguidance makes 25,000 a second."""
