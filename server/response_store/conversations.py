"""Reads conversations from the file of stored responses; their sizes are known before."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import orjson

from server.response_store.records import BrokenChainError, GeneratedRun, Json, TooLargeError

_MAX_DEPTH = 1 << 14
_CHAIN = """
WITH RECURSIVE chain (key, previous, status, used, depth) AS (
    SELECT key, previous, status, used, 0
    FROM responses WHERE owner = ? AND id = ? AND used >= ?
    UNION ALL
    SELECT older.key, older.previous, older.status, older.used, depth + 1
    FROM chain JOIN responses AS older ON older.key = chain.previous
    WHERE depth < ?
)
SELECT key, previous, status, used FROM chain ORDER BY depth DESC
"""
_ITEMS = "FROM items WHERE response = ? AND is_output <= ?"
_LATEST = """
SELECT response, position, LENGTH(item) FROM items JOIN responses ON key = response
WHERE items.owner = ? AND items.id = ? AND used >= ?
ORDER BY response DESC, position DESC LIMIT 1
"""


class Chain(NamedTuple):
    """Responses of which each continues the one before it.

    Attributes:
        keys: oldest first.
        status: of the last.
        used: when it was last used.
    """

    keys: list[int]
    status: str
    used: float


def read_chain(
    connection: sqlite3.Connection, owner: bytes, response_id: str, oldest: float
) -> Chain | None:
    """The chain up to a response; None where this owner has none of that id.

    Raises:
        BrokenChainError: an earlier response is gone.
    """
    rows = connection.execute(_CHAIN, (owner, response_id, oldest, _MAX_DEPTH)).fetchall()
    if not rows:
        return None
    if rows[0][1] is not None:
        raise BrokenChainError
    return Chain([row[0] for row in rows], rows[-1][2], rows[-1][3])


def chain_items(
    connection: sqlite3.Connection, keys: Sequence[int], max_bytes: int, *, with_output: bool
) -> list[Json]:
    """The items of a chain, oldest first.

    Args:
        with_output: those that the last of it replied with, too.

    Raises:
        TooLargeError: they take more than `max_bytes`.
    """
    asked = [(key, with_output or key != keys[-1]) for key in keys]
    lengths = f"SELECT COALESCE(SUM(LENGTH(item)), 0) {_ITEMS}"
    num_bytes = sum(connection.execute(lengths, each).fetchone()[0] for each in asked)
    if num_bytes > max_bytes:
        raise TooLargeError(num_bytes)
    return [
        orjson.loads(raw)
        for each in asked
        for (raw,) in connection.execute(f"SELECT item {_ITEMS} ORDER BY position", each)
    ]


def latest_items(
    connection: sqlite3.Connection, owner: bytes, ids: Sequence[str], oldest: float, max_bytes: int
) -> list[Json | None]:
    """The latest item of each id, None where there is none; one named twice is read once.

    Raises:
        TooLargeError: they take more than `max_bytes`, each as often as it is named.
    """
    counts = Counter(ids)
    places = {
        each: connection.execute(_LATEST, (owner, each, oldest)).fetchone() for each in counts
    }
    num_bytes = sum(counts[each] * place[2] for each, place in places.items() if place)
    if num_bytes > max_bytes:
        raise TooLargeError(num_bytes)
    item = "SELECT item FROM items WHERE response = ? AND position = ?"
    found = {
        each: orjson.loads(connection.execute(item, place[:2]).fetchone()[0])
        for each, place in places.items()
        if place
    }
    return [found.get(each) for each in ids]


def generated_runs(connection: sqlite3.Connection, key: int) -> Iterator[GeneratedRun]:
    """What the model generated in a response, where that is known."""
    rows = connection.execute(
        "SELECT prompt_chars, token_ids FROM responses WHERE key = ? AND prompt_chars IS NOT NULL",
        (key,),
    )
    for start, raw in rows:
        yield GeneratedRun(start, np.frombuffer(raw, dtype="<i4").astype(np.int32))
