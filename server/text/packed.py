"""Arrays as base64 in JSON, for clients that move millions of values.

{"dtype": "<f4", "shape": [2, 3], "data": "..."} stands for the array
`numpy.frombuffer(base64.b64decode(data), dtype).reshape(shape)`: little-endian, the last index
running fastest. -inf stays -inf.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from server.errors import ApiError


def packed(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Pack an array of numbers; raises `ApiError` for NaN and +Inf, which never leave."""
    if array.dtype.kind == "f":
        check_finite(array)
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"dtype": little.dtype.str, "shape": list(array.shape), "data": data}


def check_finite(values: npt.NDArray[Any]) -> bool:
    """Whether all values are finite, and not -inf; raises `ApiError` for NaN and +Inf."""
    finite = np.isfinite(values)
    if finite.all():
        return True
    if np.isnan(values).any() or np.isposinf(values).any():
        raise ApiError(500, "the logprobs hold NaN or +Inf", code="nan_logits")
    return False
