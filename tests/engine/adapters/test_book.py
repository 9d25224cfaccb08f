from __future__ import annotations

import random
from concurrent.futures import Future

import pytest

from engine.adapters.book import AdapterBook
from engine.config import AdaptersConfig
from engine.contracts.adapters import NO_SLOT, AdapterLoad, AdapterSource, AdapterVersion
from engine.errors import AdapterError, ControlError


class Reader:
    """Reads when it is told to; the digest of a folder is its name, as of now."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self._pending: list[tuple[Future[bytes], str]] = []

    def read(self, number: int, source: AdapterSource) -> Future[bytes]:
        assert number not in self.held
        self.held.add(number)
        future: Future[bytes] = Future()
        self._pending.append((future, source.path))
        return future

    def drop(self, number: int) -> None:
        self.held.remove(number)

    def finish(self) -> None:
        pending, self._pending = self._pending, []
        for future, path in pending:
            if path == "bad":
                future.set_exception(AdapterError("a bad folder"))
            else:
                future.set_result(path.encode())


class Books:
    def __init__(self, max_loras: int = 2, max_cpu_loras: int | None = None) -> None:
        self.reader = Reader()
        config = AdaptersConfig(max_loras=max_loras, max_cpu_loras=max_cpu_loras)
        self.book = AdapterBook(config, self.reader)
        self.ends: list[ControlError | None] = []

    def load(self, name: str, path: str = "a", *, replaces: bool = False) -> ControlError | None:
        source = AdapterSource(path)
        self.book.load(name, source, replaces=replaces, done=self.ends.append)
        self.settle()
        return self.ends.pop()

    def settle(self) -> None:
        self.reader.finish()
        self.book.settle()

    def take(self, name: str) -> AdapterVersion:
        version = self.book.take(name)
        assert version is not None
        return version


def test_names_count_their_versions() -> None:
    books = Books()
    assert books.load("x") is None
    error = books.load("x", "b")
    assert error is not None
    assert error.code == "adapter_exists"
    assert books.load("x", "b", replaces=True) is None
    assert books.book.named == (("x", "b", 2, b"b".hex()),)
    books.book.unload("x")
    with pytest.raises(ControlError) as unknown:
        books.book.unload("x")
    assert unknown.value.code == "no_adapter"
    assert not books.reader.held
    books.book.check(is_idle=True)


def test_two_loads_of_a_name_at_once() -> None:
    books = Books()
    for path in "ab":
        source = AdapterSource(path)
        books.book.load("x", source, replaces=False, done=books.ends.append)
    books.settle()
    first, second = books.ends
    assert first is None
    assert second is not None
    assert books.book.named == (("x", "a", 1, b"a".hex()),)
    assert len(books.reader.held) == 1


def test_a_refused_adapter_is_let_go() -> None:
    books = Books()
    error = books.load("x", "bad")
    assert error is not None
    assert (error.code, str(error)) == ("adapter_refused", "a bad folder")
    assert books.book.named == ()
    assert not books.reader.held


def test_the_slot_used_longest_ago_is_taken() -> None:
    books = Books()
    for name in "xyz":
        books.load(name, name)
    x, y, z = (books.take(name) for name in "xyz")
    for version in (x, y):
        books.book.place(version)
    assert not books.book.has_slot(z)
    assert books.book.take_loads() == [AdapterLoad(0, x.number), AdapterLoad(1, y.number)]
    books.book.let_go(1)
    books.book.let_go(0)
    books.book.place(y)
    books.book.let_go(1)
    books.book.place(z)  # x was used before y
    assert (x.slot, y.slot, z.slot) == (NO_SLOT, 1, 0)
    assert books.book.take_loads() == [AdapterLoad(0, z.number)]


def test_an_adapter_over_the_limit_is_read_again() -> None:
    books = Books(max_loras=1, max_cpu_loras=2)
    for name in "xyz":
        books.load(name, name)
    assert len(books.reader.held) == 2
    x = books.take("x")
    ready: list[str | None] = []
    assert x.reading is None
    books.book.await_read(x, ready.append)
    books.book.await_read(x, ready.append)
    assert not ready
    books.settle()
    assert ready == [None, None]
    assert x.is_there
    assert len(books.reader.held) == 2, "y was dropped"
    books.book.leave(x)
    books.book.check(is_idle=True)


def test_a_reading_that_fails_later_is_tried_again() -> None:
    books = Books(max_loras=1, max_cpu_loras=1)
    for name in "xy":
        books.load(name, name)
    x, ready = books.take("x"), list[str | None]()
    x.source = AdapterSource("bad")
    books.book.await_read(x, ready.append)
    books.settle()
    x.source = AdapterSource("x")
    books.book.await_read(x, ready.append)
    books.settle()
    assert ready == ["a bad folder", None]


def test_statistics_name_those_who_run_and_wait() -> None:
    books = Books(max_loras=1)
    for name in "xyz":
        books.load(name)
    assert books.load("bad", "bad") is not None
    x, y = books.take("x"), books.take("y")
    books.book.place(x)
    books.book.take_loads()
    stats = books.book.stats()
    assert (stats.running, stats.waiting) == (("x",), ("y",))
    assert (stats.num_slots, stats.num_held, stats.num_slot_loads, stats.num_failed) == (1, 3, 1, 1)
    books.book.let_go(x.slot)
    for version in (x, y):
        books.book.leave(version)
    assert books.book.stats().running == books.book.stats().waiting == ()


def test_what_was_given_is_kept_beyond_the_limit() -> None:
    """It cannot be read again; its bytes are let go once it was read."""
    books = Books(max_loras=1, max_cpu_loras=1)
    source = AdapterSource("given", b"{}", tensors=b"many")
    books.book.load("given", source, replaces=False, done=books.ends.append)
    books.settle()
    for name in "xy":
        books.load(name)
    given = books.take("given")
    assert given.is_there
    assert not given.source.is_given
    books.book.leave(given)
    books.book.unload("given")
    assert not books.reader.held


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_changes_leak_nothing(seed: int) -> None:
    """Names, users, rows and readings come and go in any order."""
    rng, books = random.Random(seed), Books(max_loras=3, max_cpu_loras=4)
    book, users, rows = books.book, list[AdapterVersion](), list[tuple[AdapterVersion, int]]()
    for _ in range(1000):
        name = rng.choice("vwxyz")
        match rng.randrange(6):
            case 0:
                source = AdapterSource(rng.choice("abc"))
                book.load(name, source, replaces=True, done=books.ends.append)
            case 1 if name in [each.name for each in book.named]:
                book.unload(name)
            case 2 if version := book.take(name):
                users.append(version)
                if not version.is_there:
                    book.await_read(version, lambda error: None)
            case 3 if users:
                version = rng.choice(users)
                if version.is_there and book.has_slot(version):
                    book.place(version)
                    rows.append((version, version.slot))
                    users.remove(version)
            case 4 if rows:
                version, slot = rows.pop(rng.randrange(len(rows)))
                assert version.slot == slot, "a row's adapter left its slot"
                book.let_go(slot)
                book.leave(version)
            case 5:
                books.settle()
                book.take_loads()
        book.check(is_idle=False)
    books.settle()
    for version, slot in rows:
        book.let_go(slot)
        book.leave(version)
    for version in users:
        book.leave(version)
    for each in book.named:
        book.unload(each.name)
    book.check(is_idle=True)
    assert not books.reader.held
    assert books.ends
    assert not any(books.ends)
