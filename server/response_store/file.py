"""Opens the file of stored responses: its tables, its settings, and whether it is one of ours."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from server.response_store.records import StoreError

APPLICATION_ID = 0x7461696C
"""Marks the file as one of ours."""
VERSION = 1
BUSY_MS = 20_000
"""How long to wait for fronts that write. None has a turn: eight that write all the time kept one
of them waiting for 3 s, on a machine with two cores."""
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "foreign_keys = ON",
    "secure_delete = ON",
    f"journal_size_limit = {16 << 20}",
)
_TABLES = """
CREATE TABLE IF NOT EXISTS responses (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    owner BLOB NOT NULL,
    id TEXT NOT NULL,
    previous INTEGER,
    status TEXT NOT NULL,
    is_cancelled INTEGER NOT NULL DEFAULT 0,
    used REAL NOT NULL,
    reply BLOB NOT NULL,
    prompt_chars INTEGER,
    token_ids BLOB,
    UNIQUE (owner, id)
);
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (used);
CREATE INDEX IF NOT EXISTS responses_to_cancel ON responses (key) WHERE is_cancelled;
CREATE TABLE IF NOT EXISTS items (
    response INTEGER NOT NULL REFERENCES responses (key) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    is_output INTEGER NOT NULL,
    owner BLOB NOT NULL,
    id TEXT NOT NULL,
    item BLOB NOT NULL,
    PRIMARY KEY (response, position)
);
CREATE INDEX IF NOT EXISTS items_by_id ON items (owner, id, response);
"""


def open_file(path: str) -> sqlite3.Connection:
    """Open a file, or make it; raises `StoreError` for one that is not ours or is damaged."""
    with errors_named():
        if path and not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # it holds what people said
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            _check_kind(connection)
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
    return connection


def _check_kind(connection: sqlite3.Connection) -> None:
    """Raise a `StoreError` for a database that is not one of ours."""
    connection.execute("BEGIN")  # another front may be making it
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if tables and mark != APPLICATION_ID:
        raise StoreError("it is a database of another program")
    if version not in (0, VERSION):
        raise StoreError(f"it has version {version}, this program reads {VERSION}")


@contextmanager
def errors_named() -> Iterator[None]:
    """Raise what goes wrong in the block with the file as `StoreError`."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(str(error)) from error
