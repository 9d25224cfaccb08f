"""Checksums of tensors, computed where they are."""

from __future__ import annotations

import torch

CHUNK = 1 << 20
"""Words of a tensor that are weighed at once."""

_factors: dict[torch.device, list[torch.Tensor]] = {}
"""The factors of a chunk's places, of both sums."""


def checksum(tensor: torch.Tensor) -> str:
    """128 bits that differ for tensors that differ, computed where the tensor is.

    Two sums, modulo 2^64, of the tensor's 32-bit words plus one, each times the factor of its place
    in a chunk of `CHUNK` words and the factor of its chunk: odd numbers that splitmix64 (Steele et
    al. 2014) makes of both. Tensors that differ in a way that no adversary chose have equal sums by
    a chance of about 2^-126.
    """
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    words = torch.nn.functional.pad(data, (0, -len(data) % 4)).view(torch.int32)
    if data.device not in _factors:
        _factors[data.device] = [_odd(torch.arange(CHUNK, device=data.device), i) for i in (0, 1)]
    sums = torch.zeros(2, dtype=torch.int64, device=data.device)
    for index, chunk in enumerate(torch.split(words, CHUNK)):
        wide = chunk.to(torch.int64) + ((1 << 31) + 1)
        for i, factors in enumerate(_factors[data.device]):
            place = torch.tensor(index, device=data.device)
            sums[i] += (wide * factors[: len(wide)]).sum() * _odd(place, i)
    return "".join(f"{value % (1 << 64):016x}" for value in sums.tolist())


def _odd(place: torch.Tensor, index: int) -> torch.Tensor:
    """The factors of places, in a sum."""
    return _mixed(2 * place + index) | 1


def _mixed(value: torch.Tensor) -> torch.Tensor:
    """splitmix64 of int64 numbers, whose overflow wraps."""
    value = (value + 1) * -7046029254386353131
    value = (value ^ _shifted(value, 30)) * -4658895280553007687
    value = (value ^ _shifted(value, 27)) * -7723592293110705685
    return value ^ _shifted(value, 31)


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that fills in zeros."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
