from __future__ import annotations

import random
from concurrent.futures import Future

import pytest

from engine.adapters.registry import AdapterRegistry
from engine.config import AdaptersConfig
from engine.contracts.adapters import NO_SLOT, AdapterLoad, AdapterSource, AdapterVersion
from engine.errors import AdapterError, ControlError


class Reading(Future[bytes]):
    """A reading that nobody may wait for: steps would wait too."""

    def result(self, timeout: float | None = None) -> bytes:
        assert self.done(), "waited for"
        return super().result(timeout)


class Reader:
    """Reads when it is asked to; the digest of a folder is its name, but for those in `written`."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}
        self.held: set[int] = set()
        self._pending: list[tuple[Future[bytes], str]] = []

    def read(self, number: int, source: AdapterSource) -> Future[bytes]:
        assert number not in self.held
        self.held.add(number)
        future = Reading()
        self._pending.append((future, source.path))
        return future

    def drop(self, number: int) -> None:
        self.held.remove(number)

    def finish(self, most: int | None = None) -> None:
        count = len(self._pending) if most is None else most
        pending, self._pending = self._pending[:count], self._pending[count:]
        for future, path in pending:
            if path == "bad":
                future.set_exception(AdapterError("a bad folder"))
            else:
                future.set_result(self.written.get(path, path.encode()))


class Adapters:
    def __init__(self, max_loras: int = 2, max_cpu_loras: int | None = None) -> None:
        self.reader = Reader()
        config = AdaptersConfig(max_loras=max_loras, max_cpu_loras=max_cpu_loras)
        self.registry = AdapterRegistry(config, self.reader)
        self.ends: list[ControlError | None] = []

    def load(self, name: str, path: str = "a", *, replaces: bool = False) -> ControlError | None:
        source = AdapterSource(path)
        self.registry.load(name, source, replaces=replaces, done=self.ends.append)
        self.settle()
        return self.ends.pop()

    def settle(self) -> None:
        self.reader.finish()
        self.registry.settle()

    def take(self, name: str) -> AdapterVersion:
        version = self.registry.take(name)
        assert version is not None
        return version


def test_names_count_their_versions() -> None:
    adapters = Adapters()
    assert adapters.load("x") is None
    error = adapters.load("x", "b")
    assert error is not None
    assert error.code == "adapter_exists"
    assert adapters.load("x", "b", replaces=True) is None
    assert adapters.registry.named == (("x", "b", 2, b"b".hex()),)
    adapters.registry.unload("x")
    with pytest.raises(ControlError) as unknown:
        adapters.registry.unload("x")
    assert unknown.value.code == "no_adapter"
    assert not adapters.reader.held
    adapters.registry.check(is_idle=True)


def test_a_version_that_is_named_no_longer_is_not_taken_for_another() -> None:
    adapters = Adapters()
    adapters.load("sql", "a")
    first, digest = adapters.take("sql"), b"a".hex()
    assert adapters.registry.take("sql", digest=digest) is first
    adapters.load("sql", "b", replaces=True)
    assert adapters.registry.take("sql", digest=digest) is None
    assert first.num_users == 2, "nobody more has it"
    assert adapters.registry.take("sql", digest=b"b".hex()) is adapters.take("sql")


def test_two_loads_of_a_name_at_once() -> None:
    adapters = Adapters()
    for path in "ab":
        source = AdapterSource(path)
        adapters.registry.load("x", source, replaces=False, done=adapters.ends.append)
    adapters.settle()
    first, second = adapters.ends
    assert first is None
    assert second is not None
    assert adapters.registry.named == (("x", "a", 1, b"a".hex()),)
    assert len(adapters.reader.held) == 1


def test_readings_that_have_not_ended_are_not_waited_for() -> None:
    adapters = Adapters()
    for name in "xy":
        source = AdapterSource(name)
        adapters.registry.load(name, source, replaces=False, done=adapters.ends.append)
    adapters.registry.settle()
    assert adapters.ends == []
    adapters.reader.finish(1)
    adapters.registry.settle()
    assert adapters.ends == [None]
    assert [each.name for each in adapters.registry.named] == ["x"]
    adapters.settle()
    assert adapters.ends == [None, None]
    assert [each.name for each in adapters.registry.named] == ["x", "y"]


def test_a_refused_adapter_is_let_go() -> None:
    adapters = Adapters()
    error = adapters.load("x", "bad")
    assert error is not None
    assert (error.code, str(error)) == ("adapter_refused", "a bad folder")
    assert adapters.registry.named == ()
    assert not adapters.reader.held


def test_the_slot_used_longest_ago_is_taken() -> None:
    adapters = Adapters()
    for name in "xyz":
        adapters.load(name, name)
    x, y, z = (adapters.take(name) for name in "xyz")
    for version in (x, y):
        adapters.registry.place(version)
    assert not adapters.registry.has_slot(z)
    assert adapters.registry.take_loads() == [AdapterLoad(0, x.number), AdapterLoad(1, y.number)]
    adapters.registry.let_go(1)
    adapters.registry.let_go(0)
    adapters.registry.place(y)
    adapters.registry.let_go(1)
    adapters.registry.place(z)  # x was used before y
    assert (x.slot, y.slot, z.slot) == (NO_SLOT, 1, 0)
    assert adapters.registry.take_loads() == [AdapterLoad(0, z.number)]


def test_an_adapter_over_the_limit_is_read_again() -> None:
    adapters = Adapters(max_loras=1, max_cpu_loras=2)
    for name in "xyz":
        adapters.load(name, name)
    assert len(adapters.reader.held) == 2
    x = adapters.take("x")
    ready: list[str | None] = []
    assert x.reading is None
    adapters.registry.await_read(x, ready.append)
    adapters.registry.await_read(x, ready.append)
    assert not ready
    adapters.settle()
    assert ready == [None, None]
    assert x.is_there
    assert len(adapters.reader.held) == 2, "y was dropped"
    adapters.registry.leave(x)
    adapters.registry.check(is_idle=True)


def test_who_asks_by_a_digest_gets_no_other_adapter() -> None:
    adapters = Adapters()
    adapters.load("x", "a")
    registry = adapters.registry
    assert registry.take("x", digest=b"another".hex()) is None
    x = registry.take("x", digest=b"a".hex())
    assert x is adapters.take("x")


def test_an_adapter_over_the_limit_is_the_one_left_longest_ago() -> None:
    adapters = Adapters(max_loras=1, max_cpu_loras=2)
    for name in "xy":
        adapters.load(name, name)
    x, y = adapters.take("x"), adapters.take("y")
    adapters.registry.leave(y)
    adapters.registry.leave(x)
    adapters.load("z", "z")
    assert (x.is_there, y.is_there) == (True, False)


def test_an_adapter_over_the_limit_is_the_one_asked_for_longest_ago() -> None:
    adapters = Adapters(max_loras=1, max_cpu_loras=2)
    for name in "xy":
        adapters.load(name, name)
    x, y = adapters.take("x"), adapters.take("y")
    adapters.take("x")
    for version in (x, y, x):
        adapters.registry.leave(version)
    adapters.load("z", "z")
    assert (x.is_there, y.is_there) == (True, False)


def test_a_reading_that_fails_later_is_tried_again() -> None:
    adapters = Adapters(max_loras=1, max_cpu_loras=1)
    for name in "xy":
        adapters.load(name, name)
    x, ready = adapters.take("x"), list[str | None]()
    x.source = AdapterSource("bad")
    adapters.registry.await_read(x, ready.append)
    adapters.settle()
    x.source = AdapterSource("x")
    adapters.registry.await_read(x, ready.append)
    adapters.settle()
    assert ready == ["a bad folder", None]


def test_a_folder_that_holds_another_adapter_by_now_is_refused() -> None:
    """Until it is loaded again: its replies and prefixes would have the name of the first."""
    adapters = Adapters(max_loras=1, max_cpu_loras=1)
    for name in "xy":
        adapters.load(name, name)
    named, x, ready = adapters.registry.named, adapters.take("x"), list[str | None]()
    adapters.reader.written["x"] = b"other"
    adapters.registry.await_read(x, ready.append)
    adapters.settle()
    words = "x was written since it was loaded as 'x': load it again"
    assert ready == [words]
    assert (adapters.registry.named, x.is_there) == (named, False)
    assert adapters.registry.stats().num_failed == 1
    adapters.registry.leave(x)
    assert adapters.load("x", "x", replaces=True) is None
    assert ("x", "x", 2, b"other".hex()) in adapters.registry.named
    assert adapters.take("x").is_there


def test_statistics_name_those_who_run_and_wait() -> None:
    adapters = Adapters(max_loras=1)
    for name in "xyz":
        adapters.load(name)
    assert adapters.load("bad", "bad") is not None
    x, y = adapters.take("x"), adapters.take("y")
    adapters.registry.place(x)
    adapters.registry.take_loads()
    stats = adapters.registry.stats()
    assert (stats.running, stats.waiting) == (("x",), ("y",))
    assert (stats.num_slots, stats.num_held, stats.num_slot_loads, stats.num_failed) == (1, 3, 1, 1)
    adapters.registry.let_go(x.slot)
    for version in (x, y):
        adapters.registry.leave(version)
    assert adapters.registry.stats().running == adapters.registry.stats().waiting == ()


def test_what_was_given_is_kept_beyond_the_limit() -> None:
    """It cannot be read again; its bytes are let go once it was read."""
    adapters = Adapters(max_loras=1, max_cpu_loras=1)
    source = AdapterSource("given", b"{}", tensors=b"many")
    adapters.registry.load("given", source, replaces=False, done=adapters.ends.append)
    adapters.settle()
    for name in "xy":
        adapters.load(name)
    given = adapters.take("given")
    assert given.is_there
    assert not given.source.is_given
    adapters.registry.leave(given)
    adapters.registry.unload("given")
    assert not adapters.reader.held


def test_an_adapter_that_nobody_waits_for_any_longer_is_let_go_of_once_it_was_read() -> None:
    """Its name went, and who asked for it ended, while it was read again."""
    adapters = Adapters(max_cpu_loras=1)
    registry = adapters.registry
    adapters.load("x", "a")
    adapters.load("y", "b")
    version = adapters.take("x")
    assert not version.is_there
    registry.await_read(version, lambda error: None)
    registry.unload("x")
    registry.leave(version)
    adapters.settle()
    registry.check(is_idle=True)
    assert adapters.take("y").is_there, "it kept its place on the host"
    assert len(adapters.reader.held) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_changes_leak_nothing(seed: int) -> None:
    """Names, users, rows and readings come and go in any order."""
    rng, adapters = random.Random(seed), Adapters(max_loras=3, max_cpu_loras=4)
    registry, users, rows = (
        adapters.registry,
        list[AdapterVersion](),
        list[tuple[AdapterVersion, int]](),
    )
    for _ in range(1000):
        name = rng.choice("vwxyz")
        match rng.randrange(7):
            case 0:
                source = AdapterSource(rng.choice("abc"))
                registry.load(name, source, replaces=True, done=adapters.ends.append)
            case 1 if name in [each.name for each in registry.named]:
                registry.unload(name)
            case 2 if version := registry.take(name):
                users.append(version)
                if not version.is_there:
                    registry.await_read(version, lambda error: None)
            case 3 if users:
                version = rng.choice(users)
                if version.is_there and registry.has_slot(version):
                    registry.place(version)
                    rows.append((version, version.slot))
                    users.remove(version)
            case 4 if rows:
                version, slot = rows.pop(rng.randrange(len(rows)))
                assert version.slot == slot, "a row's adapter left its slot"
                registry.let_go(slot)
                registry.leave(version)
            case 5:
                adapters.settle()
                registry.take_loads()
            case 6 if users:
                registry.leave(users.pop(rng.randrange(len(users))))
        registry.check(is_idle=False)
    adapters.settle()
    for version, slot in rows:
        registry.let_go(slot)
        registry.leave(version)
    for version in users:
        registry.leave(version)
    for each in registry.named:
        registry.unload(each.name)
    registry.check(is_idle=True)
    assert not adapters.reader.held
    assert adapters.ends
    assert not any(adapters.ends)
