"""What ranks agree on, and the words of it, which clients get whatever a file says."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from engine.contracts.named_weights import WeightError
from engine.contracts.weights import WeightUpdateError
from engine.errors import ControlError
from engine.weights.agreement import agreed
from engine.weights.folder_tensors import FolderTensors
from sampling.device.ranks import RankExchange
from tests.engine.weights.rooms import CPU
from tests.sampling.ranks import on_ranks

HEADER = b'{"x":{"dtype":"\\ud800","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize("name", [b"model.safetensors", b"\xff.safetensors"])
def test_a_damaged_file_is_refused_in_words_that_can_be_sent(name: bytes, tmp_path: Path) -> None:
    """A half of a pair in its header, as JSON may have it, and a name that is not UTF-8."""
    damaged = tmp_path / os.fsdecode(name)
    damaged.write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + bytes(4))
    with pytest.raises(WeightUpdateError) as caught:
        FolderTensors(tmp_path, CPU)
    words = str(caught.value)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(words)) == words
    assert r"\ud800" in words
    assert (r"\udcff.safe" in words) == (name != b"model.safetensors")


@pytest.mark.parametrize(
    "error",
    [ControlError("\ud800 é", "busy"), WeightError("\ud800 é", "busy"), OSError("\ud800 é")],
)
def test_ranks_agree_on_any_words(error: Exception) -> None:
    def words_of(exchange: RankExchange) -> str:
        def work() -> None:
            if exchange.rank:
                raise error

        with pytest.raises(WeightUpdateError) as caught:
            agreed(work, exchange)
        return str(caught.value)

    first, second = on_ranks(2, words_of)
    assert first == second
    assert first.endswith(r"\ud800 é")
