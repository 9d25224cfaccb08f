"""A driver whose GPU is a tensor on the host: what is unmapped there is lost."""

from __future__ import annotations

import torch

from engine.memory.segments import Segment

GARBAGE = 0xA5


class FakeDriver:
    """The `MemoryDriver` over a buffer of the host.

    Attributes:
        room: bytes that may be mapped; None is any number.
        host_bytes: of what was copied to the host.
    """

    def __init__(self, num_bytes: int) -> None:
        self.buffer = torch.zeros(num_bytes, dtype=torch.uint8)
        self.room: int | None = None
        self.host_bytes = 0
        self.mapped: dict[int, int] = {}
        self._begun = 0

    def segment(self, num_bytes: int) -> tuple[Segment, torch.Tensor]:
        """A segment that is mapped, and its bytes."""
        own = self.buffer[self._begun : self._begun + num_bytes]
        self._begun += num_bytes
        address = own.data_ptr()
        return Segment(address, num_bytes, self.map(address, num_bytes)), own

    def map(self, address: int, size: int) -> int:
        if self.room is not None and sum(self.mapped.values()) + size > self.room:
            raise RuntimeError("cuMemCreate failed with CUDA error 2")
        assert address not in self.mapped
        self.mapped[address] = size
        self._at(address, size).fill_(GARBAGE)
        return address

    def unmap(self, address: int, size: int, handle: int) -> None:
        assert self.mapped.pop(address) == size
        assert handle == address
        self._at(address, size).fill_(GARBAGE)

    def clear(self, address: int, size: int) -> None:
        self._at_mapped(address, size).zero_()

    def host(self, size: int) -> torch.Tensor:
        self.host_bytes += size
        return torch.empty(size, dtype=torch.uint8)

    def to_host(self, host: torch.Tensor, address: int) -> None:
        host.copy_(self._at_mapped(address, len(host)))

    def to_device(self, address: int, host: torch.Tensor) -> None:
        self._at_mapped(address, len(host)).copy_(host)

    def _at_mapped(self, address: int, size: int) -> torch.Tensor:
        assert any(
            begin <= address and address + size <= begin + length
            for begin, length in self.mapped.items()
        ), "no memory is mapped there"
        return self._at(address, size)

    def _at(self, address: int, size: int) -> torch.Tensor:
        start = address - self.buffer.data_ptr()
        return self.buffer[start : start + size]
