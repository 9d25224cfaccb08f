"""What checks grammars in a process of its own, since a check in Rust can be ended in no other way.

llguidance bounds most of what a grammar may cost, but not all: `multipleOf` of a large number takes
minutes. So checks run where they can be killed, and where what they take of memory is bounded too.
"""

from __future__ import annotations

import msgspec

from server.structured.llguidance_check import GrammarCheck
from server.structured.spec import CheckedGrammar, GrammarSpec, TokenTable

_checks: list[GrammarCheck] = []
"""The one of this process, once `make_ready` was called."""


def make_ready(vocabulary: bytes) -> None:
    """Read the model's tokens, a packed `TokenTable`."""
    _checks.append(GrammarCheck(msgspec.msgpack.decode(vocabulary, type=TokenTable)))


def check(raw: bytes) -> CheckedGrammar:
    """The grammar of a packed `GrammarSpec`; raises `ApiError` where it is refused."""
    return _checks[0].check(GrammarSpec.unpacked(raw))
