# mypy: allow-untyped-defs, allow-incomplete-defs
"""Products of float32 on tensor cores, by products of parts of bfloat16.

A part has 8 of a number's 24 digits, so that three parts are the number. TF32's two parts would
need as many products and twice the registers. What is small is summed first.
"""

from __future__ import annotations

from sampling.device.triton_support import jit, tl


@jit
def _upper_half(x):
    """The first 8 digits of a float32, cut off, as bfloat16."""
    return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@jit
def _without_upper_half(x):
    """What is left of a float32 without those digits; exact."""
    return x - (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@jit
def _parts(x):
    """Three bfloat16 tensors that sum to x, float32.

    Integers' operations cut off digits: conversions have an eighth of their rate.
    """
    rest = _without_upper_half(x)
    return _upper_half(x), _upper_half(rest), _upper_half(_without_upper_half(rest))


@jit
def _two_by_turns(x, y):
    """Two [N, C] as one [N, 2 C], whose columns are theirs by turns."""
    return tl.reshape(tl.join(x, y), (x.shape[0], 2 * x.shape[1]))


@jit
def short_dot(a, b):
    """a bᵀ [N, M] of float32 [N, C] and [M, C], for C that is one step of a product.

    Of all nine products of parts the six that float32 can tell from nothing; those of one size are
    one longer product, since each waits for the one before it.
    """
    high, middle, low = _parts(a)
    b_high, b_middle, b_low = _parts(b)
    small = _two_by_turns(_two_by_turns(high, middle), _two_by_turns(low, high))
    b_small = _two_by_turns(_two_by_turns(b_low, b_middle), _two_by_turns(b_high, b_middle))
    large, b_large = _two_by_turns(middle, high), _two_by_turns(b_high, b_high)
    return tl.dot(large, tl.trans(b_large), tl.dot(small, tl.trans(b_small)))


@jit
def dot(a, b, in_parts: tl.constexpr):
    """a b [N, M] of float32 a [N, K] and of b [K, M], float32 or bfloat16.

    Args:
        in_parts: float32 b too is multiplied by parts, whose layout as a product's result is the
            one that a needs as a factor; else by TF32's.
    """
    if in_parts:
        high, middle, low = _parts(a)
        b_high, b_middle, b_low = _parts(b)
        product = tl.dot(high, b_low, tl.dot(middle, b_middle, tl.dot(low, b_high)))
        product = tl.dot(high, b_high, tl.dot(high, b_middle, tl.dot(middle, b_high, product)))
    elif b.dtype == tl.bfloat16:
        high, middle, low = _parts(a)
        product = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        product = tl.dot(a, b, input_precision="tf32x3")
    return product
