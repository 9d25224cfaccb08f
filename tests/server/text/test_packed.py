"""Arrays as base64: dtype, order and values as written down, and no NaN."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from server.errors import ApiError
from server.schema.fields import PackedDtype
from server.text.packed import check_finite, packed, unpacked


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float32, "<f4"), (np.float64, "<f8"), (np.int32, "<i4")]
)
def test_there_and_back(dtype: type, name: str) -> None:
    array: npt.NDArray[Any] = np.arange(6, dtype=dtype).reshape(2, 3)
    made = packed(array)
    assert (made["dtype"], made["shape"]) == (name, [2, 3])
    assert (unpacked(made) == array).all()


def test_the_bytes_are_little_endian_and_the_last_index_runs_fastest() -> None:
    made = packed(np.array([[1, 2], [3, 256]], dtype=">i4"))
    assert made["dtype"] == "<i4"
    assert base64.b64decode(made["data"]) == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1, 0, 0])
    across = packed(np.array([[1, 3], [2, 256]], dtype=np.int32).T)  # columns lie together
    assert across == made


def test_empty_arrays_keep_their_shape() -> None:
    made = packed(np.zeros((0, 2), dtype=np.float32))
    assert (made["shape"], made["data"]) == ([0, 2], "")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_are_rounded_to_the_nearest_ties_to_even(dtype: PackedDtype) -> None:
    rng = np.random.default_rng(1)
    spacing = 2.0**-10 if dtype == "float16" else 2.0**-7  # of values in [1, 2)
    ties = 1 + spacing * (np.arange(64) + 0.5)
    values = np.concatenate([-rng.exponential(5, 500), ties, [-np.inf, 0.0, -1e30]])
    array = values.astype(np.float32)
    made = packed(array, dtype)
    assert made["dtype"] == ("<f2" if dtype == "float16" else "bfloat16")
    bits = np.frombuffer(base64.b64decode(made["data"]), dtype="<u2").astype(np.int32)
    torch_dtype = torch.float16 if dtype == "float16" else torch.bfloat16
    wanted = torch.from_numpy(array).to(torch_dtype).view(torch.int16).numpy().astype(np.int32)
    assert (bits == (wanted & 0xFFFF)).all()
    rounded = torch.from_numpy(array).to(torch_dtype).float()
    assert unpacked(made).astype(np.float32).tolist() == rounded.tolist()
    assert packed(np.arange(3), dtype)["dtype"] == "<i8", "ids stay as they are"


def test_minus_infinity_stays() -> None:
    array = np.array([-np.inf, 0.5], dtype=np.float32)
    assert unpacked(packed(array)).tolist() == [-np.inf, 0.5]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_never_leave(bad: float) -> None:
    with pytest.raises(ApiError) as caught:
        packed(np.array([0, bad], dtype=np.float32))
    assert (caught.value.status, caught.value.code) == (500, "nan_logits")


def test_check_finite() -> None:
    assert check_finite(np.array([0.0, -1.0]))
    assert not check_finite(np.array([0.0, -np.inf]))
    for bad in (np.nan, np.inf):
        with pytest.raises(ApiError):
            check_finite(np.array([-np.inf, bad]))
