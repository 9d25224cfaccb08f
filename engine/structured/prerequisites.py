"""What choices wait for before they wait for a row: their adapter, and then their grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.adapters.registry import AdapterRegistry
from engine.messages.step_output import Finish
from engine.rows import Choice
from engine.structured.grammars import Grammars


class Prerequisites:
    """Holds choices until their adapter was read and their grammar compiled.

    Args:
        grammars, adapters: None where requests can have none.
        on_ready: called with choices that wait for nothing but a row.
        on_failure: called with choices whose adapter or grammar cannot be had, and why.
    """

    def __init__(
        self,
        grammars: Grammars | None,
        adapters: AdapterRegistry | None,
        on_ready: Callable[[list[Choice]], None],
        on_failure: Callable[[list[Choice], Finish, str], None],
    ) -> None:
        self._grammars, self._adapters = grammars, adapters
        self._on_ready, self._on_failure = on_ready, on_failure

    def on_there(self, wake: Callable[[], None]) -> None:
        """Let `wake` be called, on another thread, when a grammar or adapter is there."""
        if self._grammars is not None:
            self._grammars.on_compiled(wake)
        if self._adapters is not None:
            self._adapters.on_read(wake)

    @property
    def has_read(self) -> bool:
        """Whether `settle` has an adapter to take in."""
        return self._adapters is not None and self._adapters.has_read

    @property
    def num_waiting(self) -> int:
        """Choices for which `settle` has nothing yet; 0 where it has a grammar for some."""
        count = 0 if self._adapters is None else self._adapters.num_waiting
        if self._grammars is not None and not self._grammars.has_compiled:
            count += self._grammars.num_waiting
        return count

    def adopt(self, choices: list[Choice]) -> bool:
        """Give choices the adapter that their request names; False where there is none."""
        if self._adapters is None:
            return not choices[0].request.adapter
        return self._adapters.adopt(choices)

    def begin(self, choices: list[Choice]) -> None:
        """Let choices wait for what they lack, in order."""
        adapter = choices[0].adapter
        if self._adapters is not None and adapter is not None and not adapter.is_there:
            self._adapters.await_read(adapter, partial(self._go_on, choices))
            return
        is_constrained = choices[0].request.is_constrained
        if not (is_constrained and self._grammars and self._grammars.hold(choices)):
            self._on_ready(choices)

    def _go_on(self, choices: list[Choice], error: str | None) -> None:
        """Begin choices whose adapter is there, or end them with the reason why it is not."""
        if going_on := [choice for choice in choices if not choice.ended]:
            if error is None:
                self.begin(going_on)
            else:
                self._on_failure(going_on, Finish.ADAPTER, error)

    def settle(self) -> None:
        """Let go on what waited for adapters and grammars that came since the last step."""
        if self._adapters is not None:
            self._adapters.settle()
        if self._grammars is None:
            return
        for choices, error in self._grammars.take_compiled():
            if error is not None:
                self._on_failure(choices, Finish.GRAMMAR, error)
            elif choices:
                self._on_ready(choices)

    def forget(self, choice: Choice) -> None:
        """Hold a choice that ended no longer, nor its adapter for it."""
        if self._grammars is not None:
            self._grammars.forget(choice)
        if self._adapters is not None and choice.adapter is not None:
            self._adapters.leave(choice.adapter)
