# mypy: allow-untyped-defs, allow-incomplete-defs
"""Tuples of values within kernels, which loops that the compiler unrolls make and read."""

from __future__ import annotations

from sampling.device.triton_support import jit, tl


@jit
def appended(values, value):
    """A tuple with one more value."""
    return values + (value,)  # noqa: RUF005  (the compiler unpacks none)


@jit
def value_at(values, index: tl.constexpr):
    """A tuple's value."""
    return values[index]
