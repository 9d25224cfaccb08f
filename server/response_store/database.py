"""The file of stored responses: an SQLite database in WAL mode that all fronts of a server share.

Its methods may wait for the disk or for another front, so they are called on a thread of their own,
one at a time. A response holds its own input, its output and the number of the response that it
continues; a conversation is read along these numbers.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson

from server.config import ResponseStoreConfig
from server.response_store.conversations import (
    chain_items,
    generated_runs,
    latest_items,
    read_chain,
)
from server.response_store.file import errors_named, open_file
from server.response_store.records import (
    FAILED,
    IN_PROGRESS,
    GeneratedRun,
    Json,
    NewResponse,
    StoredConversation,
    StoredReply,
    StoreError,
    TakenIdError,
)

SILENT_S = 30.0
"""A running response whose front has not touched it for so long has failed with its front."""
MAX_SHARE = 4
"""A response that takes more than this part of the store is not stored."""
_BATCH = 16
"""Responses that are removed at once to make room."""


class ResponseDatabase:
    """An open file; raises `StoreError` wherever it cannot be read or written.

    Args:
        config: whose path may be empty for a file of this process alone, which ends with it.
    """

    def __init__(self, config: ResponseStoreConfig) -> None:
        self._config = config
        self._connection = open_file(config.path)
        self._page_bytes = int(self._value("PRAGMA page_size"))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # -- writing ------------------------------------------------------------------------------

    def begin(self, new: NewResponse) -> int:
        """Add a response that runs from now on; returns its key.

        Raises:
            TakenIdError: the id is that of another.
        """
        reply = orjson.dumps(new.reply)
        items = [(each["id"], orjson.dumps(each)) for each in new.items]
        self._check_size(len(reply) + sum(len(raw) for _, raw in items))
        now, previous = time.time(), new.chain[-1] if new.chain else None
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE responses SET used = ? WHERE key = ?", [(now, key) for key in new.chain]
            )
            try:
                cursor = connection.execute(
                    "INSERT INTO responses (owner, id, previous, status, used, reply) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (new.owner, new.id, previous, IN_PROGRESS, now, reply),
                )
            except sqlite3.IntegrityError:
                raise TakenIdError from None
            key = cursor.lastrowid
            assert key is not None
            self._add_items(key, new.owner, 0, items, is_output=False)
            self._make_room(key)
        return key

    def update(self, key: int, reply: Json) -> None:
        """Write a running response as it is now."""
        raw = orjson.dumps(reply)
        with self._transaction() as connection:
            connection.execute(
                "UPDATE responses SET reply = ?, used = ? WHERE key = ? AND status = ?",
                (raw, time.time(), key, IN_PROGRESS),
            )

    def finish(
        self, key: int, status: str, reply: Json, output: Sequence[Json], run: GeneratedRun | None
    ) -> None:
        """Write how a response ended; nothing where it was deleted meanwhile."""
        raw = orjson.dumps(reply)
        items = [(each["id"], orjson.dumps(each)) for each in output]
        token_ids = b"" if run is None else np.asarray(run.token_ids, dtype="<i4").tobytes()
        self._check_size(2 * len(raw) + len(token_ids))
        start = None if run is None else run.start
        with self._transaction() as connection:
            row = connection.execute(
                "UPDATE responses SET status = ?, is_cancelled = 0, used = ?, reply = ?, "
                "prompt_chars = ?, token_ids = ? WHERE key = ? RETURNING owner",
                (status, time.time(), raw, start, token_ids, key),
            ).fetchone()
            if row is not None:
                last = "SELECT COALESCE(MAX(position), -1) FROM items WHERE response = ?"
                first = int(self._value(last, key)) + 1
                self._add_items(key, row[0], first, items, is_output=True)
                self._make_room(key)

    def _add_items(
        self,
        key: int,
        owner: bytes,
        first: int,
        items: Sequence[tuple[str, bytes]],
        *,
        is_output: bool,
    ) -> None:
        rows = [
            (key, first + i, is_output, owner, item_id, raw)
            for i, (item_id, raw) in enumerate(items)
        ]
        self._connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", rows)

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Remove a response with its input and output; returns whether it was there.

        The log is emptied too, where it still stands; in the file it is overwritten by zeros.
        """
        with self._transaction() as connection:
            found = connection.execute(
                "DELETE FROM responses WHERE owner = ? AND id = ? AND used >= ?",
                (owner, response_id, self._oldest()),
            )
        if found.rowcount == 0:
            return False
        self._value("PRAGMA wal_checkpoint(TRUNCATE)")
        return True

    def remove(self, key: int) -> None:
        """Remove a response that came to nothing."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM responses WHERE key = ?", (key,))

    def touch(self, keys: Sequence[int]) -> None:
        """Note that these responses run."""
        rows = [(time.time(), key) for key in keys]
        with self._transaction() as connection:
            connection.executemany("UPDATE responses SET used = ? WHERE key = ?", rows)

    def cancel(self, key: int) -> None:
        """Ask the front that runs a response to end it."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE responses SET is_cancelled = 1 WHERE key = ? AND status = ?",
                (key, IN_PROGRESS),
            )

    # -- reading ------------------------------------------------------------------------------

    def get(self, owner: bytes, response_id: str) -> StoredReply | None:
        """A response as it was last written; None where this owner has none of that id."""
        with errors_named():
            row = self._connection.execute(
                "SELECT key, status, used, reply FROM responses "
                "WHERE owner = ? AND id = ? AND used >= ?",
                (owner, response_id, self._oldest()),
            ).fetchone()
        if row is None:
            return None
        key, status, used, raw = row
        if status != IN_PROGRESS or used >= time.time() - SILENT_S:
            return StoredReply(key, status, raw)
        error = {"code": "server_error", "message": "the process that generated it ended"}
        reply = orjson.loads(raw) | {"status": FAILED, "error": error}
        return StoredReply(key, FAILED, orjson.dumps(reply))

    def to_cancel(self) -> list[int]:
        """Keys of running responses that shall end."""
        with errors_named():
            rows = self._connection.execute("SELECT key FROM responses WHERE is_cancelled")
            return [key for (key,) in rows]

    def conversation(
        self, owner: bytes, response_id: str, max_bytes: int
    ) -> StoredConversation | None:
        """The items up to the end of a response; None where this owner has none of that id.

        Raises:
            BrokenChainError: an earlier response is gone.
            TooLargeError: they take more than `max_bytes`.
        """
        return self._read(owner, response_id, max_bytes, with_output=True)

    def input_items(self, owner: bytes, response_id: str, max_bytes: int) -> list[Json] | None:
        """The items that a response continues, as `conversation` has them."""
        found = self._read(owner, response_id, max_bytes, with_output=False)
        return None if found is None else found.items

    def _read(
        self, owner: bytes, response_id: str, max_bytes: int, *, with_output: bool
    ) -> StoredConversation | None:
        with errors_named():
            chain = read_chain(self._connection, owner, response_id, self._oldest())
            if chain is None:
                return None
            items = chain_items(self._connection, chain.keys, max_bytes, with_output=with_output)
            runs = [run for key in chain.keys for run in generated_runs(self._connection, key)]
        is_silent = chain.status == IN_PROGRESS and chain.used < time.time() - SILENT_S
        return StoredConversation(chain.keys, FAILED if is_silent else chain.status, items, runs)

    def items(self, owner: bytes, ids: Sequence[str], max_bytes: int) -> list[Json | None]:
        """The latest item of each id; None where this owner has none of that id.

        Raises:
            TooLargeError: they take more than `max_bytes`, each as often as it is named.
        """
        with errors_named():
            return latest_items(self._connection, owner, ids, self._oldest(), max_bytes)

    # -- bounds -------------------------------------------------------------------------------

    def _oldest(self) -> float:
        """The time of last use before which responses have expired."""
        return time.time() - self._config.max_age_s

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > (most := self._config.max_bytes // MAX_SHARE):
            raise StoreError(
                f"a response of {num_bytes} bytes is over a quarter of the store ({most} bytes)"
            )

    def _make_room(self, key: int) -> None:
        """Remove what has expired, and what was used least recently while there is too much.

        Args:
            key: of the response that it is for, which stays.
        """
        connection = self._connection
        connection.execute("DELETE FROM responses WHERE used < ?", (self._oldest(),))
        while self._is_full():
            removed = connection.execute(
                "DELETE FROM responses WHERE key IN (SELECT key FROM responses "
                "WHERE key != ? AND (status != ? OR used < ?) ORDER BY used, key DESC LIMIT ?)",
                (key, IN_PROGRESS, time.time() - SILENT_S, _BATCH),
            )
            if removed.rowcount == 0:
                return

    def _is_full(self) -> bool:
        pages = int(self._value("PRAGMA page_count")) - int(self._value("PRAGMA freelist_count"))
        if pages * self._page_bytes > self._config.max_bytes:
            return True
        return int(self._value("SELECT COUNT(*) FROM responses")) > self._config.max_responses

    def _value(self, statement: str, *values: object) -> float:
        with errors_named():
            value: float = self._connection.execute(statement, values).fetchone()[0]
        return value

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, one front at a time."""
        with errors_named():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                    self._connection.execute("ROLLBACK")
                raise


def check_store(config: ResponseStoreConfig) -> None:
    """Raise a `StoreError` for a file that cannot be used; make one where there is none."""
    if config.path and not Path(config.path).resolve().parent.is_dir():
        raise StoreError("its folder does not exist")
    database = ResponseDatabase(config)
    database.touch([])  # whether it can be written
    database.close()
