from __future__ import annotations

import pytest
import torch

from engine.weights import staging
from engine.weights.staging import copies

ON = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def raws(on: str) -> list[torch.Tensor]:
    """Bytes of as many lengths as are awkward: none, and no multiple of an alignment."""
    return [torch.arange(n, dtype=torch.uint8, device=on) for n in (3, 0, 256, 77, 1)]


@pytest.mark.parametrize("on", ON)
def test_copies_are_aligned_and_of_their_own(on: str) -> None:
    given = raws(on)
    held = copies(given)
    for raw in given:
        raw.zero_()
    assert [raw.tolist() for raw in held] == [raw.tolist() for raw in raws(on)]
    assert all(raw.data_ptr() % 16 == 0 for raw in held if len(raw))
    assert held[2].view(torch.float32).shape == (64,)
    assert copies([]) == []


@pytest.mark.gpu
def test_copies_are_on_the_host_where_a_gpu_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SPARE_BYTES", 1 << 50)
    held = copies(raws("cuda"))
    assert {raw.device.type for raw in held} == {"cpu"}
    assert [raw.tolist() for raw in held] == [raw.tolist() for raw in raws("cpu")]
