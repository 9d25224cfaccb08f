"""What a page of `formats/` says of how a model writes reasoning and tool calls.

A reply passes through states. Each state reads one kind of text and has exits: markers that lead to
other states. The names `start`, `content`, `reasoning` and `answer` stand for the same in every
format: a reply's beginning, plain text, thoughts, and the beginning of what follows thoughts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Part = Literal["reasoning", "content", "tool", "markup"]
"""What a token, or some text, belongs to; `tool` is a call's name, keys and arguments."""

START, CONTENT, ANSWER, REASONING = "start", "content", "answer", "reasoning"


@dataclass(frozen=True)
class Exit:
    """A marker that ends a state.

    Attributes:
        to: the state after it.
        eats_space: white space before the marker belongs to it.
        keeps: the marker is the first of what the next state reads.
        ends_call: the call's arguments are complete.
    """

    marker: str
    to: str
    eats_space: bool = False
    keeps: bool = False
    ends_call: bool = False


@dataclass(frozen=True)
class Start:
    """Decides by what comes first, white space aside.

    Attributes:
        otherwise: the state where none of the markers comes first.
        skips_space: the white space is markup then, and not the text's.
    """

    exits: tuple[Exit, ...]
    otherwise: str = CONTENT
    skips_space: bool = False


@dataclass(frozen=True)
class Text:
    """Text that is shown.

    Attributes:
        skips_space: white space at its beginning is markup.
    """

    part: Literal["reasoning", "content"]
    exits: tuple[Exit, ...] = ()
    skips_space: bool = False


@dataclass(frozen=True)
class Between:
    """White space, and brackets that a call left open, up to a marker; anything else is content."""

    exits: tuple[Exit, ...]


@dataclass(frozen=True)
class Field:
    """Text up to a marker that says something of a call.

    Attributes:
        role: a call's name; one argument's key or value; what kind its value is of; the key that a
            value's end repeats; a header that routes tell what of; or text of no meaning.
        trims_line: a value loses one line break at either end.
        is_text: a value is a string, whatever it spells.
        pattern: an expression of a name's whole text, whose group `name` is the name; empty where
            the text is the name.
        routes: for headers and kinds, patterns and where they lead; a header's group `name` is a
            call's name.
        tag: a value of several parts has each between `tag<key>` and `tag</key>`; empty where
            values are one text.
    """

    role: Literal["name", "key", "kind", "value", "closing", "header", "ignored"]
    exits: tuple[Exit, ...]
    trims_line: bool = False
    is_text: bool = False
    pattern: str = ""
    routes: tuple[tuple[str, str], ...] = ()
    tag: str = ""


@dataclass(frozen=True)
class JsonCalls:
    """Calls as JSON objects with a name and arguments: one, several, or a list of them.

    Attributes:
        after: the state after the last of them.
        needs_arguments: an object without arguments is no call.
        name_is_key: an object has the name as its only key, and the arguments as its value.
    """

    after: str
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    needs_arguments: bool = False
    name_is_key: bool = False


@dataclass(frozen=True)
class JsonArguments:
    """The arguments of a call whose name is known, as a JSON object."""

    after: str


@dataclass(frozen=True)
class PythonCalls:
    """Calls as a Python list: `[look(at="it", n=2), stop()]`."""

    after: str


@dataclass(frozen=True)
class BareArguments:
    """The arguments of a call whose name is known, as an object whose keys are bare words.

    Values are JSON, but strings are between `quote` and `quote`, without escapes:
    `{at:<|"|>it<|"|>,n:2}`.

    Attributes:
        after: the state after them.
    """

    after: str
    quote: str


State = Start | Text | Between | Field | JsonCalls | JsonArguments | PythonCalls | BareArguments


@dataclass(frozen=True)
class MessageSyntax:
    """How a reply of several messages writes those that are no calls, for grammars.

    Attributes:
        thoughts, remark: what begins a message of thoughts, or one beside calls.
        end: what ends either.
        separator: what comes after that, before the next message.
        answer: what begins the last message of a reply without calls.
    """

    thoughts: str
    remark: str
    end: str
    separator: str
    answer: str


@dataclass(frozen=True)
class CallSyntax:
    """How a format writes calls, for whoever makes a grammar of tools.

    A reply with calls is `opening`, then calls with `separator` between them, then `closing`. A
    call is `begin`, the arguments, `end`; `{name}` is replaced by the tool's name.

    Attributes:
        arguments: `json` is one JSON object. With `fields` each argument is between
            `field_begin` and `field_end`, `{key}` standing for its key: a string as it is, any
            other value as JSON. With `python` arguments are `key=value` with commas between.
        field_separator: what is between two arguments that are fields.
        json_begin, json_end: as `field_begin` and `field_end`, of values that are no strings; None
            where they are the same. `{type}` is replaced by the word that `type_words` has for the
            JSON type.
        id_pattern: an expression of a call's id, which replaces `{id}` in `begin`.
        trigger: the text that shows that a call begins, where calls are free to come or not.
        leads: calls are at a reply's beginning only.
        is_last: a call is the last of its reply.
        messages: of a reply of several messages; None for one that is all one.
    """

    begin: str
    end: str
    arguments: Literal["json", "fields", "python"] = "json"
    opening: str = ""
    separator: str = ""
    closing: str = ""
    field_begin: str = ""
    field_end: str = ""
    field_separator: str = ""
    json_begin: str | None = None
    json_end: str | None = None
    type_words: Mapping[str, str] = field(default_factory=dict)
    id_pattern: str = ""
    trigger: str = ""
    leads: bool = False
    is_last: bool = False
    messages: MessageSyntax | None = None


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes tool calls.

    Attributes:
        names: values of `--tool-call-parser` that mean it, which are vLLM's.
        recognised_by: texts that a chat template of such a model holds: all of one of the lists.
        openers: markers that open calls at a reply's beginning only.
        exits: markers that open calls anywhere in the content.
        strays: markers that are dropped where they are in the content for nothing.
        states: the states after `openers` and `exits`.
        id_chars: the length of a call's id; None for "call_" and 24 characters.
        tool_names: an expression of the names that calls may have, where not all are possible.
    """

    names: tuple[str, ...]
    recognised_by: tuple[tuple[str, ...], ...]
    syntax: CallSyntax
    states: Mapping[str, State]
    openers: tuple[Exit, ...] = ()
    exits: tuple[Exit, ...] = ()
    strays: tuple[str, ...] = ()
    id_chars: int | None = None
    tool_names: str = ""


@dataclass(frozen=True)
class ReasoningFormat:
    """How a model writes its thoughts.

    Attributes:
        names: values of `--reasoning-parser` that mean it, which are vLLM's.
        recognised_by: as `ToolFormat` has it.
        begin, end: the markers around thoughts.
        begins_open: a reply begins with thoughts although nothing opened them.
        opened_by_prompt: the model never opens thoughts itself.
        answer: the text after which what follows thoughts begins; empty for `end`.
        strays: markers around content, which are dropped.
        states: states of a format whose replies are channels; they stand for those that `begin`
            and `end` would make.
    """

    names: tuple[str, ...]
    recognised_by: tuple[tuple[str, ...], ...]
    begin: str
    end: str
    begins_open: bool = False
    opened_by_prompt: bool = False
    answer: str = ""
    strays: tuple[str, ...] = ()
    states: Mapping[str, State] = field(default_factory=dict)
