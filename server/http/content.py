"""How a body is encoded: which content types are read, and compressed bodies within their bound."""

from __future__ import annotations

import zlib

from starlette.types import Scope

from server.errors import ApiError, bad_request
from server.http.account import header
from server.schema.base import shown

FORM = "application/x-www-form-urlencoded"
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""What zlib calls each format."""
_RAW_DEFLATE = -15
MAX_RATIO = 1032
"""A byte of deflate is no more than so many of what was compressed."""
_CHUNK_BYTES = 1 << 20


def check_content_type(scope: Scope) -> None:
    """Refuse what is not JSON by its own account.

    A form's type, or none, is what `curl -d` sends, so it is let pass; but not with an `Origin`,
    which browsers send: pages of other sites may post forms without asking, JSON they may not.

    Raises:
        ApiError: 415, naming the type.
    """
    kind = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return
    if kind not in ("", FORM) or header(scope, b"origin") is not None:
        got = shown(kind) if kind else "none"
        raise ApiError(415, f"content-type must be application/json, got {got}")


def content_encoding(scope: Scope) -> str | None:
    """How the body is compressed, None where it is not; raises a 415 for what is not read."""
    encoding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if encoding == "identity":
        return None
    if encoding not in _WINDOW_BITS:
        raise ApiError(
            415,
            f"content-encoding must be gzip, deflate or identity, got {shown(encoding)}",
            headers={"accept-encoding": "gzip, deflate"},
        )
    return encoding


def decompress(body: bytes | bytearray, encoding: str, limit: int) -> bytearray | None:
    """The body as it was; None where it is longer than `limit` bytes, which are not exceeded.

    Raises:
        ApiError: 400, the body is not what its encoding says, or not all of it.
    """
    bits = _WINDOW_BITS[encoding]
    if encoding == "deflate" and not _is_zlib(body):
        bits = _RAW_DEFLATE  # what many clients mean by it
    raw: bytes | bytearray = body
    plain = bytearray()  # grows piece by piece: joining them would hold Python's lock
    try:
        while True:  # gzip may be of several members
            stream = zlib.decompressobj(bits)
            pending = raw
            while not stream.eof:
                part = stream.decompress(pending, _CHUNK_BYTES)
                pending = stream.unconsumed_tail
                plain += part
                if len(plain) > limit:
                    return None
                if not part and not pending and not stream.eof:
                    raise bad_request(None, f"the body's {encoding} ends too early")
            raw = stream.unused_data
            if not raw:
                return plain
    except zlib.error as error:
        raise bad_request(None, f"the body is not valid {encoding}: {error}") from None


def _is_zlib(raw: bytes | bytearray) -> bool:
    """Whether it begins with a zlib header, as the standard wants it."""
    return len(raw) >= 2 and raw[0] & 0x0F == 8 and int.from_bytes(raw[:2], "big") % 31 == 0
