"""What planning, the runner and its adapters say to each other. No torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from engine.errors import AdapterError, kind_and_line

NO_SLOT = -1
"""The slot of rows and tokens without an adapter."""


class AdapterLoad(NamedTuple):
    """The adapter of a number is copied into a slot before a step."""

    slot: int
    number: int


class AdapterSource(msgspec.Struct, frozen=True):
    """Where an adapter comes from: files as PEFT's `save_pretrained` writes them.

    Attributes:
        path: of their folder; of an adapter that is given, what errors and lists call it.
        config: adapter_config.json, of an adapter that is given.
        tensors: adapter_model.safetensors, of an adapter that is given.
        handles: a pickle of tensors of another process of this machine, in place of that; see
            `engine.weights.handles`.
    """

    path: str
    config: bytes = b""
    tensors: bytes = b""
    handles: bytes = b""

    @property
    def is_given(self) -> bool:
        """Whether it can be read once alone: it is not in files."""
        return bool(self.tensors or self.handles)


class NamedAdapter(NamedTuple):
    """What a name stands for, as frontends see it.

    Attributes:
        version: counts the adapters that the name has stood for, from 1.
        digest: a hash of its configuration and tensors, in hexadecimal digits.
    """

    name: str
    path: str
    version: int
    digest: str


class AdapterReader(Protocol):
    """Reads adapters into the memory of the host, under numbers."""

    def read(self, number: int, source: AdapterSource) -> Future[bytes]:
        """Begin to read an adapter.

        Returns:
            A hash of the adapter once it is there; raises `AdapterError` where it is refused.
        """
        ...

    def drop(self, number: int) -> None:
        """Forget an adapter that no later step loads."""
        ...


Ready = Callable[[str | None], None]
"""Called when an adapter is there, with None, or with the reason why it cannot be served."""


@dataclass(eq=False)
class AdapterVersion:
    """An adapter as it was when it was loaded.

    Attributes:
        number: by which the reader knows it; every reading has its own.
        name, source: that it was loaded by.
        is_kept: it cannot be read again.
        reading: ends when it is on the host; None where it was dropped.
        digest: a hash of it, which prefixes carry.
        num_users: choices and scoring requests that keep it.
        slot: that it is in, `NO_SLOT` for none.
        waiting: those who wait for the reading.
    """

    number: int
    name: str
    source: AdapterSource
    is_kept: bool
    reading: Future[bytes] | None = None
    digest: bytes = b""
    num_users: int = 0
    slot: int = NO_SLOT
    waiting: list[Ready] = field(default_factory=list)

    def is_of(self, digest: str) -> bool:
        """Whether a request may have it that names this digest, as of `Request.adapter_digest`."""
        return digest in ("", self.digest.hex())

    @property
    def is_there(self) -> bool:
        """Whether it is on the host."""
        return self.reading is not None and self.reading.done() and not self.waiting


def why_unread(path: str, error: BaseException) -> str:
    """Why an adapter was not read, of what reading it raised."""
    if isinstance(error, AdapterError):
        return str(error)
    return f"{path} could not be read: {kind_and_line(error)}"  # memory, disks


def no_adapter(name: str, digest: str) -> str:
    """Why a request gets no adapter: nothing has its name, or not what it had by its digest."""
    if digest:
        return f"the adapter {name!r} was replaced while the request was answered; send it again"
    return f"no adapter {name!r} is loaded"
