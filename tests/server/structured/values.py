"""JSON values of every type, to hold schemas against an independent validator."""

from __future__ import annotations

import itertools
from typing import Any

OBJECTS: list[Any] = [
    dict(zip(keys, values, strict=True))
    for count in range(4)
    for keys in itertools.combinations("abc", count)
    for values in itertools.product([1, None], repeat=count)
]
NUMBERS: list[Any] = [-1, 0, 1, 2, 1.5, 3]
STRINGS: list[Any] = ["", "x", "y", "xy", "xyz", "x\n", '"', "\u20ac"]
ARRAYS: list[Any] = [[], [1], [1, 2], [2, 1], [1, 1], [None], ["x"], [[1]], [1, 2, 3]]
VALUES: list[Any] = [None, True, False, *NUMBERS, *STRINGS, *ARRAYS, *OBJECTS]
