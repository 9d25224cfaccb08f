"""Adapters on the host, by the numbers that the engine gives them, and their way into slots."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from engine.adapters.folder import OpenHandles, no_handles, read_adapter
from engine.adapters.product import HostAdapter
from engine.adapters.stacks import AdapterStacks
from engine.contracts.adapters import AdapterSource


class AdapterStore:
    """The `AdapterReader` of a runner: reads adapters on threads, and keeps them.

    Of several ranks each has a store, with its parts of every adapter.

    Args:
        open_handles: opens what other processes of this machine share.
    """

    def __init__(self, stacks: AdapterStacks, open_handles: OpenHandles = no_handles) -> None:
        self._stacks, self._open_handles = stacks, open_handles
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="adapters")
        self._adapters: dict[int, Future[HostAdapter]] = {}

    def read(self, number: int, source: AdapterSource) -> Future[bytes]:
        """Begin to read an adapter, which gets a number.

        Returns:
            Its digest, once it is there; raises `AdapterError` where it cannot be served.
        """
        there: Future[HostAdapter] = Future()
        self._adapters[number] = there

        def run() -> bytes:
            try:
                adapter = read_adapter(source, self._stacks.max_rank, self._open_handles)
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
