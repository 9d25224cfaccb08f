# mypy: allow-untyped-defs, allow-incomplete-defs
"""Noise as a pure function: Philox4x32-10 words, 64-bit uniforms and exponentials in float64.

The noise contract (changing any of it changes the tokens of every seeded request):

- Generator: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
- Key: the request's seed, a signed 64-bit integer taken modulo 2^64; low word first.
- Counter, four 32-bit words: (index >> 1, position, choice, stream).
  - index: a tile id at `LEVEL_TILE`, a token id at `LEVEL_TOKEN`, 0 for a lone uniform.
  - position: `Purpose.TARGET` and `Purpose.RESIDUAL` use the absolute position the drawn token
    will have; `Purpose.DRAFT` and `Purpose.ACCEPT` use the position of the step's first draft
    together with the draft's depth, never the drafted token's own position.
  - choice: which of a request's n choices.
  - stream: `stream(purpose, level, depth)`, so no two purposes or levels share a word.
- One block of four words serves two neighbouring indices: index i takes words 2(i & 1) (high)
  and 2(i & 1) + 1 (low).
- Uniform: u = (high * 2^32 + low + 1/2) * 2^-64 rounded to float64, at most 1 - 2^-53. The
  smallest is 2^-65, so a token of probability 2^-60 wins as often as it should.
- Exponential: E = -log1p(-u) in float64, relative error below 2^-50 on every device.
- A race over weights w is won by the smallest E / w, the lower index among equals. Two levels:
  tiles of `TILE` consecutive ids race on their total weights, then the winner's tokens race.

Why a last-digit difference between devices cannot matter: for a race with time X of the winner
and total weight W, the runner-up comes within (1 + eps) X with probability at most
E[1 - exp(-W eps X)] <= eps E[W X] = eps. A key's error is that of E, and of the weight's exponent
a, which rounds by a * 2^-52: below 2^-45 in all for a < 64, and a token with a larger one has
probability e^-64. So a token differs with probability below 2^-44 a draw, given equal weights.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampling.device.triton_support import constexpr, jit, tl

TILE = 1024  # ids in a tile: part of the noise definition on every device, never tuned
LEVEL_TILE, LEVEL_TOKEN = 0, 1
MAX_UNIFORM = 1.0 - 2.0**-53

Words: TypeAlias = npt.NDArray[np.uint64]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _32, _ONE = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(1)


class Purpose(IntEnum):
    """The decision that a stream of noise makes; streams never share a word."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


class NoiseKey(NamedTuple):
    """The noise keys of n draws: columns of one length n on one device."""

    seeds: Tensor  # [n] int64
    positions: Tensor  # [n] int64, in [0, 2^32)
    choices: Tensor  # [n] int32 or int64, in [0, 2^32)


def stream(purpose: Purpose, level: int = LEVEL_TILE, depth: int = 0) -> int:
    """The counter's last word; `depth` counts draft tokens of a step, in [0, 2^24)."""
    return level | purpose << 1 | depth << 8


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> Words:
    """Compute Philox4x32-10 on the host.

    Args:
        counter: four uint64 arrays of values below 2^32, broadcastable; the first is full.
        key: two uint64 arrays of values below 2^32, low word first, broadcastable.

    Returns:
        uint64 [4, ...], the output words, below 2^32.
    """
    shape = np.broadcast_shapes(*(word.shape for word in counter))
    c0, c1, c2, c3 = (np.broadcast_to(word, shape).copy() for word in counter)
    key0, key1 = key
    product0, product1 = np.empty_like(c0), np.empty_like(c0)
    for _ in range(10):
        np.multiply(c0, _MULTIPLIERS[0], out=product0)
        np.multiply(c2, _MULTIPLIERS[1], out=product1)
        # c1 and c3 keep the bits above 32 that a product left in them: only the words they
        # are combined into are multiplied again, and those are masked.
        _high_xor(product1, c1, key0, out=c0)
        _high_xor(product0, c3, key1, out=c2)
        c1, product1 = product1, c1
        c3, product0 = product0, c3
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return np.stack((c0, c1 & _MASK, c2, c3 & _MASK))


def uniforms(key: NoiseKey, first: Tensor | int, count: int, stream_id: Tensor | int) -> Tensor:
    """Compute the 64-bit uniforms of the indices first .. first + count - 1, on the host.

    Args:
        key: n noise keys, CPU tensors.
        first: first index: one number for all, or [n] even ones.
        count: number of consecutive indices.
        stream_id: `stream(...)`, [n] (several depths) or one number.

    Returns:
        float64 [n, count] in [2^-65, 1 - 2^-53].
    """
    skipped = first % 2 if isinstance(first, int) else 0  # a block serves an even index first
    block = np.arange((skipped + count + 1) // 2, dtype=np.uint64) + (_column(first) >> _ONE)
    seeds = _column(key.seeds)
    counter = block, _column(key.positions), _column(key.choices), _column(stream_id)
    words = philox(counter, (seeds & _MASK, seeds >> _32)).astype(np.float64)
    # Both products are exact in float64; only their sum rounds.
    u = words[0::2] * 2.0**-32 + (words[1::2] + 0.5) * 2.0**-64  # [2, n, count / 2]
    u = np.minimum(u, MAX_UNIFORM)  # at 1 the exponential would be infinite
    each = np.moveaxis(u, 0, -1).reshape(len(seeds), -1)
    return torch.from_numpy(each[:, skipped : skipped + count])


def exponentials(key: NoiseKey, first: Tensor | int, count: int, stream_id: Tensor | int) -> Tensor:
    """Compute Exp(1) variables, float64 [n, count]; arguments as for `uniforms`."""
    return uniforms(key, first, count, stream_id).neg_().log1p_().neg_()


def _column(value: Tensor | int) -> Words:
    """One number or n as a column modulo 2^64, uint64 [n, 1] or [1, 1]."""
    column = np.asarray(value, dtype=np.int64).reshape(-1, 1)
    return column.astype(np.uint64)


def _high_xor(product: Words, word: Words, key: Words, *, out: Words) -> None:
    """Write the product's high word xor `word` xor `key` to `out`."""
    np.right_shift(product, _32, out=out)
    out ^= word
    out ^= key
    out &= _MASK


# Device functions: words and uniforms bit-identical to the host's.

_M0, _M1 = constexpr(0xD2511F53), constexpr(0xCD9E8D57)
_W0, _W1 = constexpr(0x9E3779B9), constexpr(0xBB67AE85)


@jit
def philox_words(index_pair, position, choice, stream_id, seed):
    """Compute the four uint32 words of the block `index_pair` = index >> 1; `seed` is int64."""
    c0 = index_pair.to(tl.uint32)
    c1 = position.to(tl.uint32) + tl.zeros_like(c0)
    c2 = choice.to(tl.uint32) + tl.zeros_like(c0)
    c3 = tl.zeros_like(c0) + stream_id
    key0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    key1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(10):
        high0, high1 = tl.umulhi(c0, _M0), tl.umulhi(c2, _M1)
        low0, low1 = c0 * _M0, c2 * _M1
        c0 = high1 ^ c1 ^ key0
        c2 = high0 ^ c3 ^ key1
        c1 = low1
        c3 = low0
        key0 = key0 + _W0
        key1 = key1 + _W1
    return c0, c1, c2, c3


@jit
def uniform_from_words(high, low):
    """Turn two uint32 words into the float64 uniform of the contract."""
    u = high.to(tl.float64) * 2.3283064365386963e-10
    u += (low.to(tl.float64) + 0.5) * 5.421010862427522e-20
    return tl.minimum(u, 0.9999999999999999)  # 1 - 2^-53


@jit
def exponential(u):
    """Compute -log1p(-u) of float64 u in (0, 1), from operations that every backend has.

    With w = 1 - u rounded and its error d = u - (1 - w), which is exact (Sterbenz),

        -log(1 - u) = -log(w - d) = -log(w) + d / w + ...,

    where d is 0 for u > 1/2 and below 2^-54 otherwise, so that d serves for d / w: a relative
    error below 2^-51. For u < 2^-54, w is 1 and E is d = u.
    """
    w = 1.0 - u
    return (u - (1.0 - w)) - tl.log(w)


@jit
def exponential_range(first, position, choice, stream_id, seed, half: tl.constexpr):
    """Compute Exp(1) variables of the 2 * half indices from the even index `first`, float64."""
    pair = first // 2 + tl.arange(0, half)
    w0, w1, w2, w3 = philox_words(pair, position, choice, stream_id, seed)
    even = exponential(uniform_from_words(w0, w1))
    odd = exponential(uniform_from_words(w2, w3))
    return tl.reshape(tl.join(even, odd), (2 * half,))
