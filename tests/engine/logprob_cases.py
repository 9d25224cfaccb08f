"""Arrays of logprobs for tests, and their comparison."""

from __future__ import annotations

import msgspec
import numpy as np

from engine.arrays import LogprobArrays


def logprob_arrays(count: int, num_top: int, num_explicit: int) -> LogprobArrays:
    rng = np.random.default_rng(count)
    return LogprobArrays(
        chosen=rng.standard_normal(count, dtype=np.float32),
        ranks=np.arange(count, dtype=np.int32),
        top_ids=rng.integers(0, 99, (count, num_top), dtype=np.int32),
        top_logprobs=rng.standard_normal((count, num_top), dtype=np.float32),
        explicit=np.full((count, num_explicit), -np.inf, dtype=np.float32),
        kept=-rng.random(count, dtype=np.float32),
    )


def assert_same(left: object, right: object) -> None:
    for field in left.__struct_fields__:  # type: ignore[attr-defined]
        a, b = getattr(left, field), getattr(right, field)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        elif isinstance(a, msgspec.Struct):
            assert_same(a, b)
        elif isinstance(a, list) and a and isinstance(a[0], msgspec.Struct):
            assert len(a) == len(b)
            for one, other in zip(a, b, strict=True):
                assert_same(one, other)
        else:
            assert a == b, field
