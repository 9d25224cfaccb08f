"""Which adapters there are, who uses them, and which are in the device's slots. No torch.

A name stands for a version of an adapter. A choice keeps the version that its name stood for when
it was submitted, whatever is loaded or unloaded meanwhile. A version is on the host while it is
named or used; of those that nobody uses, the least recently used ones are dropped beyond a limit,
and read again when they are asked for. Rows pin the slot of their version; of the other slots the
one used longest ago is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

from engine.config import AdaptersConfig
from engine.contracts.adapters import (
    NO_SLOT,
    AdapterLoad,
    AdapterReader,
    AdapterSource,
    AdapterVersion,
    NamedAdapter,
    Ready,
    why_unread,
)
from engine.errors import AdapterError, ControlError
from engine.rows import Choice
from engine.stats import AdapterStats


class AdapterRegistry:
    """The adapters of an engine."""

    def __init__(self, config: AdaptersConfig, reader: AdapterReader) -> None:
        self._config, self._reader = config, reader
        self._numbers = count()
        self._named: dict[str, AdapterVersion] = {}
        self._counts: dict[str, int] = {}
        self._held: dict[int, AdapterVersion] = {}  # on the host, the longest unused first
        self._slots: list[AdapterVersion | None] = [None] * config.max_loras
        self._num_rows = [0] * config.max_loras
        self._used_at = [0] * config.max_loras
        self._clock = count(1)
        self._loads: list[AdapterLoad] = []
        self._reading: list[AdapterVersion] = []
        self._num_slot_loads = self._num_failed = 0
        self._wake: Callable[[], None] = lambda: None

    # -- names ------------------------------------------------------------------------------

    @property
    def named(self) -> tuple[NamedAdapter, ...]:
        """The names there are."""
        return tuple(
            NamedAdapter(name, version.source.path, self._counts[name], version.digest.hex())
            for name, version in self._named.items()
        )

    def on_read(self, wake: Callable[[], None]) -> None:
        """Let `wake` be called, on another thread, when a reading ends."""
        self._wake = wake

    def load(
        self,
        name: str,
        source: AdapterSource,
        *,
        replaces: bool,
        done: Callable[[ControlError | None], None],
    ) -> None:
        """Read an adapter, and give it a name once it is there.

        Args:
            replaces: the name may stand for another, which those who use it keep.
            done: called with None, or with the reason why the adapter is not served.
        """
        taken = ControlError(
            f"the adapter {name!r} is loaded already; unload it first, or set load_inplace",
            "adapter_exists",
        )
        if name in self._named and not replaces:
            done(taken)
            return
        version = AdapterVersion(next(self._numbers), name, source, source.is_given)

        def settle(refusal: str | None) -> None:
            error = None if refusal is None else ControlError(refusal, "adapter_refused")
            if error is None and name in self._named and not replaces:
                error = taken
            if error is None:
                self._name(version)
            else:
                self._forget_unnamed(version)
            done(error)

        self._read(version, settle)

    def unload(self, name: str) -> None:
        """Take an adapter's name away; those who use it keep it.

        Raises:
            ControlError: nothing has that name.
        """
        version = self._named.pop(name, None)
        if version is None:
            raise ControlError(f"no adapter {name!r} is loaded", "no_adapter")
        self._forget_unnamed(version)

    def _name(self, version: AdapterVersion) -> None:
        before = self._named.get(version.name)
        self._named[version.name] = version
        self._counts[version.name] = self._counts.get(version.name, 0) + 1
        if before is not None:
            self._forget_unnamed(before)

    # -- users ------------------------------------------------------------------------------

    def take(self, name: str, num_users: int = 1, *, digest: str = "") -> AdapterVersion | None:
        """Keep the version that a name stands for; None where nothing has that name.

        Args:
            digest: as of `Request.adapter_digest`; None where the version has another.
        """
        version = self._named.get(name)
        if version is None or not version.is_of(digest):
            return None
        version.num_users += num_users
        self._note_use(version)
        return version

    def _note_use(self, version: AdapterVersion) -> None:
        """Let a version be the last to be dropped of those on the host."""
        if version.number in self._held:
            self._held[version.number] = self._held.pop(version.number)

    def adopt(self, choices: list[Choice]) -> bool:
        """Give choices the adapter that their request names; False where there is none."""
        request = choices[0].request
        if not request.adapter:
            return True
        version = self.take(request.adapter, len(choices), digest=request.adapter_digest)
        for choice in choices:
            choice.adapter = version
        return version is not None

    def await_read(self, version: AdapterVersion, ready: Ready) -> None:
        """Call `ready` when a version that is not on the host is there."""
        if version.reading is None:
            version.number = next(self._numbers)
            self._read(version, ready)
        else:
            version.waiting.append(ready)

    def leave(self, version: AdapterVersion) -> None:
        """End what `take` began, for one user."""
        version.num_users -= 1
        self._note_use(version)
        self._forget_unnamed(version)
        self._drop_unused()

    # -- the host ---------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Choices and scoring requests that wait for readings, at most."""
        return sum(version.num_users for version in self._reading)

    @property
    def readings(self) -> list[Future[bytes]]:
        """The readings that `settle` has not seen the end of."""
        return [version.reading for version in self._reading if version.reading is not None]

    @property
    def has_read(self) -> bool:
        """Whether readings have ended that `settle` would look at."""
        return any(reading.done() for reading in self.readings)

    def settle(self) -> None:
        """Tell those who wait for readings that have ended."""
        for version in [v for v in self._reading if v.reading is not None and v.reading.done()]:
            self._reading.remove(version)
            assert version.reading is not None
            error: str | None = None
            try:
                version.digest = _same_digest(version, version.reading.result())
                self._held[version.number] = version
                version.source = AdapterSource(version.source.path)  # what was given is let go
            except Exception as failure:
                error = why_unread(version.source.path, failure)
            if error is not None:
                self._num_failed += 1
                version.reading = None
                self._reader.drop(version.number)
            waiting, version.waiting = version.waiting, []
            for start in waiting:
                start(error)
            self._forget_unnamed(version)  # whoever waited may have ended meanwhile
            self._drop_unused()

    def _read(self, version: AdapterVersion, done: Ready) -> None:
        version.waiting.append(done)
        version.reading = self._reader.read(version.number, version.source)
        self._reading.append(version)
        version.reading.add_done_callback(lambda reading: self._wake())

    def _drop_unused(self) -> None:
        """Drop versions from the host that are over the limit, the longest unused first."""
        most = self._config.max_cpu_loras
        if most is None:
            return
        over = len(self._held) - most
        unused = [v for v in self._held.values() if not v.num_users and not v.is_kept]
        for version in unused[: max(over, 0)]:
            self._drop(version)

    def _forget_unnamed(self, version: AdapterVersion) -> None:
        """Drop a version that nobody uses and that no name stands for."""
        is_named = self._named.get(version.name) is version
        if not is_named and not version.num_users and version.is_there:
            self._drop(version)

    def _drop(self, version: AdapterVersion) -> None:
        self._held.pop(version.number, None)
        if version.slot != NO_SLOT:
            self._slots[version.slot], version.slot = None, NO_SLOT
        self._loads = [load for load in self._loads if load.number != version.number]
        version.reading = None
        self._reader.drop(version.number)

    # -- slots ------------------------------------------------------------------------------

    def has_slot(self, version: AdapterVersion) -> bool:
        """Whether a version is in a slot, or there is one that no row pins."""
        return version.slot != NO_SLOT or not all(self._num_rows)

    def place(self, version: AdapterVersion) -> None:
        """Put a version into a slot, where it has one, and pin it there for one row."""
        if version.slot == NO_SLOT:
            free = [slot for slot, rows in enumerate(self._num_rows) if not rows]
            slot = min(free, key=lambda slot: self._used_at[slot])
            before = self._slots[slot]
            if before is not None:
                before.slot = NO_SLOT
            self._slots[slot], version.slot = version, slot
            self._loads = [load for load in self._loads if load.slot != slot]
            self._loads.append(AdapterLoad(slot, version.number))
        self._num_rows[version.slot] += 1

    def let_go(self, slot: int) -> None:
        """End one row's pin of a slot."""
        self._num_rows[slot] -= 1
        self._used_at[slot] = next(self._clock)

    def take_loads(self) -> list[AdapterLoad]:
        """What is to be copied into slots before the next step, whichever it is."""
        loads, self._loads = self._loads, []
        self._num_slot_loads += len(loads)
        return loads

    def stats(self) -> AdapterStats:
        """The adapters that rows have and that requests wait for, and counts."""
        running, waiting = set[str](), set[str]()
        for slot, version in enumerate(self._slots):
            if version is not None and self._num_rows[slot]:
                running.add(version.name)
        for version in [*self._held.values(), *self._reading]:
            rows = 0 if version.slot == NO_SLOT else self._num_rows[version.slot]
            if version.num_users > rows:
                waiting.add(version.name)
        return AdapterStats(
            running=tuple(sorted(running)),
            waiting=tuple(sorted(waiting)),
            num_slots=len(self._slots),
            num_held=len(self._held),
            num_slot_loads=self._num_slot_loads,
            num_failed=self._num_failed,
        )

    def check(self, *, is_idle: bool) -> None:
        """Assert that the books agree; for tests and idle moments."""
        for slot, version in enumerate(self._slots):
            assert version is None or version.slot == slot, "a slot has another version"
        assert all(v.number == number for number, v in self._held.items())
        if is_idle:
            named = set(self._named.values())
            assert not any(self._num_rows), "rows are gone and pin slots"
            assert all(v in named for v in self._held.values()), "nobody can ask for an adapter"
            assert not any(v.num_users for v in named), "choices are gone and use adapters"


def _same_digest(version: AdapterVersion, digest: bytes) -> bytes:
    """The digest of a reading; raises `AdapterError` where one before it had another.

    Prefixes and fingerprints name an adapter by what it was when it was loaded.
    """
    if version.digest and digest != version.digest:
        raise AdapterError(
            f"{version.source.path} was written since it was loaded as {version.name!r}: "
            "load it again"
        )
    return digest
