"""Times of FlashInfer's sampler and the native one that ship with the package.

Building FlashInfer's module takes longer than the rest of a start. Where it was timed before, on
this class of device and with these versions, and lost by far, it is not built to lose again.

`known_times.json` is a list of `KnownTimes`; `python -m benchmarks.known_times` makes one.
"""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

FAR = 2.0
"""How many times as long FlashInfer must have taken in every case. GPUs of one class differ in
bandwidth, which bounds the native sampler, by less: H100 and H200 by 1.4."""
PATH = Path(__file__).with_suffix(".json")


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case: top-k 50 and top-p 0.95 of some rows of logits, by both, as a warm-up times it."""

    num_rows: int
    vocab_size: int
    native_ms: float
    flashinfer_ms: float


class KnownTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured on one GPU.

    Attributes:
        gpu: its name; only its compute capability is compared.
        capability: the class of device.
        flashinfer, triton: versions it holds for, of which later parts than these are ignored.
        torch: the version beside them, for the record.
    """

    gpu: str
    capability: tuple[int, int]
    flashinfer: str
    triton: str
    torch: str
    times: tuple[Times, ...]

    @property
    def loses(self) -> bool:
        """Whether FlashInfer took by far longer in every case."""
        return all(each.flashinfer_ms >= FAR * each.native_ms for each in self.times)


def known_to_lose(capability: tuple[int, int]) -> KnownTimes | None:
    """The entry by which FlashInfer's sampler is slower than the native one here, if there is one.

    Args:
        capability: the device's compute capability.
    """
    for entry in _entries():
        versions = {"flashinfer-python": entry.flashinfer, "triton": entry.triton}
        here = entry.capability == capability and all(map(_is_installed, versions.items()))
        if here and entry.loses:
            return entry
    return None


@functools.cache
def _entries() -> tuple[KnownTimes, ...]:
    return msgspec.json.decode(PATH.read_bytes(), type=tuple[KnownTimes, ...])


def _is_installed(package: tuple[str, str]) -> bool:
    """Whether the version of a package begins with these parts."""
    name, wanted = package
    try:
        return f"{version(name)}.".startswith(f"{wanted}.")
    except PackageNotFoundError:
        return False
