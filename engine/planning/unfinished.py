"""The choices that have not ended, and which of them wait for another's prompt. No torch."""

from __future__ import annotations

from collections.abc import Callable

from engine.contracts.control import is_named
from engine.rows import Choice, RowTable


class UnfinishedChoices:
    """The books of a request's choices from submission to end.

    All choices of a request have the same prompt. The first computes it, and the others wait until
    it is there, so that they find its blocks.

    Args:
        enqueue: lets a choice wait for a row.

    Attributes:
        count: choices that have not ended.
    """

    def __init__(self, enqueue: Callable[[Choice], None]) -> None:
        self._enqueue = enqueue
        self._by_request: dict[tuple[bytes, int], list[Choice]] = {}
        self._parents: set[Choice] = set()
        self.count = 0

    def add(self, choices: list[Choice]) -> None:
        """Enter the choices of a request that was submitted."""
        first = choices[0]
        self._by_request[first.frontend, first.request.handle] = list(choices)
        self.count += len(choices)

    def find(self, frontend: bytes, handle: int, choice_idx: int) -> list[Choice]:
        """One choice of a request, or all with -1, as far as they have not ended."""
        choices = self._by_request.get((frontend, handle), ())
        return [choice for choice in choices if choice_idx in (-1, choice.index)]

    def of_frontend(self, frontend: bytes) -> list[Choice]:
        """All choices of a frontend that have not ended."""
        of = [choices for key, choices in self._by_request.items() if key[0] == frontend]
        return [choice for choices in of for choice in choices]

    @property
    def waiting(self) -> list[Choice]:
        """All choices without a row that have not ended."""
        return [c for cs in self._by_request.values() for c in cs if c.row is None]

    def named(self, names: tuple[str, ...] | None) -> list[Choice]:
        """All choices of requests with one of these names, all with None, that have not ended."""
        of = self._by_request.values()
        return [c for cs in of for c in cs if names is None or is_named(c.request.name, names)]

    def start(self, choices: list[Choice]) -> None:
        """Let a request's first choice wait for a row, and the others for its prompt."""
        first, *others = choices
        first.children = others
        if others:
            self._parents.add(first)
        self._enqueue(first)

    def release_children(self, table: RowTable) -> None:
        """Enqueue the other choices of each request whose prompt the first one has computed."""
        for choice in list(self._parents):
            row = choice.row
            if row is not None and table.num_settled[row] >= choice.prompt_len:
                self._enqueue_children(choice)

    def _enqueue_children(self, choice: Choice) -> None:
        self._parents.discard(choice)
        for child in choice.children:
            if not child.ended:
                self._enqueue(child)
        choice.children = []

    def end(self, choice: Choice) -> None:
        """Strike a choice from the books; choices that waited for its prompt go on."""
        choice.ended = True
        self._enqueue_children(choice)
        self.count -= 1
        key = (choice.frontend, choice.request.handle)
        self._by_request[key].remove(choice)
        if not self._by_request[key]:
            del self._by_request[key]

    def check(self) -> None:
        """Assert that the books agree; for tests and idle moments."""
        assert self.count == sum(map(len, self._by_request.values()))
        if not self.count:
            assert not self._by_request
            assert not self._parents
