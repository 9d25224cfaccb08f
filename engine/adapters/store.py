"""Adapters on the host, by the numbers that the engine gives them, and their way into slots."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from engine.adapters.folder import read_adapter
from engine.adapters.stacks import AdapterStacks, HostAdapter


class AdapterStore:
    """The `AdapterReader` of a runner: reads adapters on threads, and keeps them.

    Of several ranks each has a store, with its parts of every adapter.
    """

    def __init__(self, stacks: AdapterStacks) -> None:
        self._stacks = stacks
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="adapters")
        self._adapters: dict[int, Future[HostAdapter]] = {}

    def read(self, number: int, path: str) -> Future[bytes]:
        """Begin to read the adapter of a folder, which gets a number.

        Returns:
            Its digest, once it is there; raises `AdapterError` where it cannot be served.
        """
        there: Future[HostAdapter] = Future()
        self._adapters[number] = there

        def run() -> bytes:
            try:
                adapter = read_adapter(Path(path), self._stacks.max_rank)
                there.set_result(self._stacks.to_host(adapter))
            except BaseException as error:
                there.set_exception(error)
                raise
            return adapter.digest

        return self._threads.submit(run)

    def drop(self, number: int) -> None:
        """Forget an adapter; slots that it is in keep it until another is copied there."""
        self._adapters.pop(number, None)

    def get(self, number: int) -> HostAdapter:
        """The adapter of a number; raises `AdapterError` where it could not be read."""
        return self._adapters[number].result()
