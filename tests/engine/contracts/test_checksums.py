"""Checksums of tensors: they differ, and are those of the formula."""

from __future__ import annotations

import torch

from engine.contracts.checksums import CHUNK, checksum


def test_checksums_differ_for_tensors_that_differ() -> None:
    """Changed, exchanged and shifted numbers; also words beyond the first chunk."""
    tensor = torch.zeros(CHUNK + 9)
    tensor[3], tensor[CHUNK + 5] = 1.0, 2.0
    others = [tensor.clone() for _ in range(4)]
    others[0][CHUNK + 5] = 2.5
    others[1][3], others[1][4] = 0.0, 1.0
    others[2][3], others[2][CHUNK + 5] = 2.0, 1.0
    others[3] = tensor[:-1]
    sums = {checksum(each) for each in [tensor, *others]}
    assert len(sums) == 5
    assert checksum(tensor.clone()) == checksum(tensor)
    assert {len(each) for each in sums} == {32}


def test_the_checksum_of_a_few_bytes() -> None:
    """By the formula in Python's integers."""
    tensor = torch.tensor([7, 250, 3, 0, 9, 1], dtype=torch.uint8)
    data = bytes([7, 250, 3, 0, 9, 1, 0, 0])
    mask = (1 << 64) - 1

    def mixed(value: int) -> int:
        value = (value + 1) * 0x9E3779B97F4A7C15 & mask
        return ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask

    def splitmix(value: int) -> int:
        value = mixed(value)
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask
        return value ^ value >> 31

    sums = [0, 0]
    for place in range(2):
        word = int.from_bytes(data[4 * place : 4 * place + 4], "little", signed=True)
        for index in range(2):
            factor = (splitmix(2 * place + index) | 1) * (splitmix(index) | 1)
            sums[index] = (sums[index] + (word + (1 << 31) + 1) * factor) & mask
    assert checksum(tensor) == f"{sums[0]:016x}{sums[1]:016x}"
