"""Results come to the host as they were when their copy began, whatever is computed meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.runner.host_copy import HostCopy, Packed

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MIXED = {
    "flags": torch.tensor([True, False, True]),
    "ids": torch.arange(6, dtype=torch.int32).view(3, 2),
    "logprobs": torch.tensor([-0.5, -1.5, -2.5]),
    "none": torch.zeros((3, 0), dtype=torch.int32),
    "places": torch.tensor([1 << 40, 2, 3]),
}


@pytest.mark.parametrize("device", DEVICES)
def test_names_shapes_and_types_are_kept(device: str) -> None:
    arrays = HostCopy({name: tensor.to(device) for name, tensor in MIXED.items()}).arrays()
    assert set(arrays) == set(MIXED)
    for name, tensor in MIXED.items():
        assert arrays[name].dtype == tensor.numpy().dtype
        assert np.array_equal(arrays[name], tensor.numpy())


@pytest.mark.parametrize("device", DEVICES)
def test_of_packed_tensors_the_first_rows_are_copied(device: str) -> None:
    twice = torch.arange(6).view(6, 1)  # two logit rows a row
    tensors = {"ids": MIXED["ids"], "flags": MIXED["flags"], "twice": twice}
    packed = Packed({name: tensor.to(device) for name, tensor in tensors.items()}, num_rows=3)
    arrays = HostCopy({"own": torch.tensor([7])}, packed, num_rows=2).arrays()
    assert arrays["own"].tolist() == [7]
    assert arrays["ids"].tolist() == [[0, 1], [2, 3]]
    assert arrays["flags"].tolist() == [True, False]
    assert arrays["twice"].tolist() == [[0], [1], [2], [3]]
    assert HostCopy({}, packed, num_rows=3).arrays()["ids"].tolist() == MIXED["ids"].tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_packed_anew_is_what_is_copied(device: str) -> None:
    packed = Packed({name: tensor.to(device) for name, tensor in MIXED.items()}, num_rows=3)
    place = packed.flat.data_ptr()
    packed.pack({name: tensor.to(device).flip(0) for name, tensor in MIXED.items()})
    arrays = HostCopy({}, packed, num_rows=3).arrays()
    assert packed.flat.data_ptr() == place
    for name, tensor in MIXED.items():
        assert np.array_equal(arrays[name], tensor.numpy()[::-1])


def test_nothing_is_copied_of_nothing() -> None:
    assert HostCopy({}).arrays() == {}


@pytest.mark.gpu
def test_what_writes_over_packed_tensors_awaits_their_copy() -> None:
    packed = Packed({"value": torch.zeros(1 << 22, dtype=torch.int32, device="cuda")})
    whole = packed.flat.view(torch.int32)
    copies = []
    for step in range(6):  # buffers come back in use while others are under way
        packed.await_copied()
        whole.fill_(step)
        copies.append(HostCopy({}, packed))
        if step >= 2:
            values = copies[step - 2].arrays()["value"]
            assert (values == step - 2).all()


@pytest.mark.gpu
def test_what_was_read_stays_when_its_buffer_is_used_again() -> None:
    read = []
    for step in range(4):
        copy = HostCopy({"value": torch.full((3,), step, device="cuda")})
        read.append(copy.arrays()["value"])
    assert [values.tolist() for values in read] == [[step] * 3 for step in range(4)]
