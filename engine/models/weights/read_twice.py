"""A source whose tensors are read twice."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.models.weights.shares import OwnedPart
from engine.models.weights.stored import Asked, StoredTensors, Unread, WeightSource


class ReadTwice:
    """A source whose tensors are read twice: the second reading gives what the first gave."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._held: dict[str, torch.Tensor] = {}
        self._holds = False

    def hold(self) -> None:
        """Hold what is read from now on until it is read again."""
        self._holds = True

    def fill(self, target: torch.Tensor, name: str) -> None:
        self._fill(target, name, lambda: self._source.fill(target, name))

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        self._fill(target, name, lambda: self._source.fill_part(target, name, part))

    def _fill(self, target: torch.Tensor, name: str, read: Callable[[], None]) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            target.copy_(held)
            return
        read()
        if self._holds:
            self._held[name] = target.clone()

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._source.shape(name)

    @property
    def checkpoint(self) -> StoredTensors | None:
        return self._source.checkpoint

    @property
    def asked(self) -> Asked:
        return self._source.asked

    @property
    def unread(self) -> Unread:
        return self._source.unread

    def finish(self) -> None:
        self._source.finish()
