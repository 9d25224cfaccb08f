"""Large bodies parsed in another process: what they may hold is bounded before it is built."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache

import msgspec
import numpy as np
import orjson

from server.errors import bad_request
from server.schema.base import Body, BodyModel, decode, unknown_fields
from server.schema.fields import IGNORED
from server.schema.foreign import NAMES, WITHOUT_EFFECT, validate_adopted

PARSE_S = 60.0
"""A body of 32 MiB takes a second."""
MAX_NUMBERS = 1 << 22
"""Numbers in one field, such as ids of prompts: twice the longest context."""
_UNKNOWN = "Object contains unknown field `"
_SEPARATORS = (b",", b"[", b"{")
_NUMERIC = b"0123456789+-.eE,[] \t\r\n"


def decode_large(
    kind: type[Body], raw: bytes, accepts_unknown: bool = False
) -> tuple[Body, list[str]]:
    """`read_json`, but what has too many fields or values is refused before anything is built.

    Raises:
        ApiError: as `decode`.
    """
    try:
        given = _raw_fields(kind, raw, accepts_unknown)
    except msgspec.ValidationError as error:
        _, found, name = str(error).partition(_UNKNOWN)
        if found:
            raise unknown_fields(kind, [name.removesuffix("`")]) from None
        return decode(kind, raw), []  # which says what is wrong
    except (msgspec.DecodeError, RecursionError):
        return decode(kind, raw), []
    ignored = {name for name in given if _is_ignored(kind, name, accepts_unknown)}
    for name, value in given.items():
        if name not in ignored:
            _check_extent(name, value, kind.max_values)
    return validate_adopted(kind, _parsed(kind, given, ignored, raw), accepts_unknown)


def _raw_fields(kind: type[BodyModel], raw: bytes, accepts_unknown: bool) -> dict[str, bytes]:
    if accepts_unknown:
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    else:
        found = msgspec.structs.asdict(msgspec.json.decode(raw, type=_fields_of(kind)))
    return {name: bytes(value) for name, value in found.items() if value}


def _is_ignored(kind: type[BodyModel], name: str, accepts_unknown: bool) -> bool:
    """Whether a field has no effect, whatever its value."""
    if name in kind.model_fields:
        return IGNORED in kind.model_fields[name].metadata
    return name in WITHOUT_EFFECT or (accepts_unknown and name not in NAMES)


def _parsed(
    kind: type[BodyModel], given: Mapping[str, bytes], ignored: Set[str], raw: bytes
) -> dict[str, object]:
    """The fields' values; of those that are ignored none is built."""
    try:
        return {
            name: None if name in ignored else orjson.loads(value) for name, value in given.items()
        }
    except orjson.JSONDecodeError:  # whose position is one in the field
        decode(kind, raw)
        raise


def _check_extent(name: str, raw: bytes, max_values: int) -> None:
    """Refuse a field of too many values, by its commas and brackets outside of strings.

    Args:
        max_values: the most of other kinds than numbers alone.
    """
    if sum(map(raw.count, _SEPARATORS)) <= max_values:  # those in strings, too
        return
    if not raw.translate(None, _NUMERIC):
        if (count := raw.count(b",") + 1) > MAX_NUMBERS:
            raise bad_request(
                name, f"{name} must hold at most {MAX_NUMBERS} numbers, got {count}", "too_large"
            )
    elif (count := _num_separators(raw)) > max_values:
        raise bad_request(
            name, f"{name} must hold at most {max_values} values, got some {count}", "too_large"
        )


def _num_separators(raw: bytes) -> int:
    """Commas and opening brackets outside of strings: about the values that raw JSON has."""
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    chars = np.frombuffer(plain, dtype=np.uint8)
    quotes = np.cumsum(chars == ord('"'), dtype=np.uint8)  # modulo 256, which keeps odd and even
    outside = chars[quotes & 1 == 0]
    return sum(int(np.count_nonzero(outside == ord(each))) for each in _SEPARATORS)


@cache
def _fields_of(kind: type[BodyModel]) -> type[msgspec.Struct]:
    """A struct with the body's fields, of which no value is looked into."""
    names = NAMES | kind.model_fields.keys()
    fields = [(name, msgspec.Raw, msgspec.Raw()) for name in sorted(names)]
    return msgspec.defstruct("Fields", fields, forbid_unknown_fields=True)
