"""Packed arrays, unpacked."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt


def unpacked(array: dict[str, Any]) -> npt.NDArray[Any]:
    """The array that a packed one stands for, as a client reads it."""
    raw = base64.b64decode(array["data"])
    return np.frombuffer(raw, array["dtype"]).reshape(array["shape"])
