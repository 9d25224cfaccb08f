"""Thoughts as `encrypted_content`, for clients that send back nothing else of them.

Nothing is kept here, and nothing is secret: it is the text in base64, after a word that reports it
from what other servers write.
"""

from __future__ import annotations

import base64
import binascii

_PREFIX = "tailrace:"


def wrapped(thoughts: str) -> str:
    """The text as `encrypted_content`; empty for none."""
    return _PREFIX + base64.b64encode(thoughts.encode()).decode() if thoughts else ""


def unwrapped(content: str) -> str:
    """The text that `wrapped` wrapped; empty for what it did not write."""
    if not content.startswith(_PREFIX):
        return ""
    try:
        return base64.b64decode(content.removeprefix(_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
