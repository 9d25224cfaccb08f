"""What crosses to the process that checks grammars, and what comes back."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from engine.messages.request import ThinkingBudget
from server.errors import bad_request

GrammarKind = Literal["json", "regex", "choice", "grammar", "structural_tag"]

WHITESPACE = r"[ \t]{1,2}|\r?\n[ \t]{0,32}"
"""White space between JSON's tokens, as a regular expression that is matched once at most: enough
for pretty printing, and an end to a model that writes line breaks forever."""
COMPACT = ""
"""No white space."""
MAX_SPEC_BYTES = 1 << 19
"""A grammar has at most, as JSON."""


class GrammarSpec(msgspec.Struct, frozen=True):
    """A grammar as a request asks for it.

    Attributes:
        kind: what `value` is.
        value: a JSON value.
        param: where it is in the body.
        whitespace: a regular expression for what may be between JSON's tokens.
        lenient: keywords of JSON schemas that cannot be enforced are dropped.
        allows_calls: it is about a message's content alone, so that a model may call tools instead;
            any other grammar is about the whole text.
    """

    kind: GrammarKind
    value: Any
    param: str
    whitespace: str = WHITESPACE
    lenient: bool = False
    allows_calls: bool = False

    def packed(self) -> bytes:
        """Everything about it as JSON, which is equal for equal grammars; raises `ApiError`."""
        try:
            raw = orjson.dumps(msgspec.structs.astuple(self))
        except orjson.JSONEncodeError:  # it reads more levels than it writes
            raise bad_request(self.param, f"{self.param} is nested too deep") from None
        if len(raw) > MAX_SPEC_BYTES:
            raise bad_request(
                self.param,
                f"{self.param} must be at most {MAX_SPEC_BYTES} bytes of JSON, got {len(raw)}",
                "grammar_too_large",
            )
        return raw

    @classmethod
    def unpacked(cls, raw: bytes) -> GrammarSpec:
        """The inverse of `packed`."""
        return cls(*orjson.loads(raw))


class Constraints(msgspec.Struct, frozen=True):
    """What masks hold the replies to a request to.

    Attributes:
        ignored: where keywords of the tools' schemas were that were dropped.
        after, unless_opened: see `engine.messages.request.Grammar`.
        budget: of thoughts.
    """

    grammar: GrammarSpec | None = None
    ignored: list[str] = []
    after: tuple[int, ...] = ()
    unless_opened: tuple[int, ...] = ()
    budget: ThinkingBudget | None = None


NO_CONSTRAINTS = Constraints()


class TokenTable(msgspec.Struct, frozen=True):
    """A model's tokens, as a process that checks grammars gets them.

    Attributes:
        tokens: the bytes of each id; those of a special token are its name.
        special_ids: ids that stand for no text.
        eos_ids: ids that end a text.
    """

    tokens: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]


class CheckedGrammar(msgspec.Struct, frozen=True):
    """A grammar that llguidance takes.

    Attributes:
        source: what the engine compiles.
        ignored: where the keywords were that `lenient` dropped.
        first: bit i % 8 of byte i // 8 says whether id i may come first.
        reduced: the JSON schema without these; None where nothing was dropped.
    """

    source: str
    ignored: list[str]
    first: bytes
    reduced: Any = None
