"""The noise of other servers: a reference of each scheme, and how often a tail wins by it.

Each scheme makes Gumbel noise g of a word of few bits and draws argmax(logit + g). Its noise grows
as the word's *rank* falls, so of many tokens with equal logits the one with the least rank is the
only one that can win; `count` needs no other.

    vLLM before 0.33       u of Triton's `rand`, 31 bits, 0 raised to 2^-31;
                           -log(-log1p(-u)) in float32, at most 21.5
    vLLM 0.33              u = (h + 1/2) 2^-32 of a Murmur3 hash h;
                           -log(-log1p(-u)) in float32, at most 22.9
    SGLang 0.5.23, seeded  u = h / (2^32 - 1) of a Murmur3 hash h, log u at most -2^-32;
                           -log(-log u) in float64, at most 22.2

The hashes themselves are taken for what they should be, uniform 32-bit words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WORDS = 2**32


class Scheme(NamedTuple):
    """How a server makes Gumbel noise.

    Attributes:
        name: of the server and its version.
        noise: ranks int64 in [0, 2^32), 0 the word with the most noise, to Gumbel noise in the
            server's dtype.
    """

    name: str
    noise: Callable[[Tensor], Tensor]


def _triton_rand(ranks: Tensor) -> Tensor:
    # `rand` takes the absolute value of a signed word, so that two words share a uniform.
    u = (ranks // 2).float() * 4.6566127342e-10
    return _from_small(u.clamp_(min=4.6566127342e-10))


def _centered_hash(ranks: Tensor) -> Tensor:
    return _from_small((ranks.double() + 0.5).mul_(1.0 / WORDS).float())


def _from_small(u: Tensor) -> Tensor:
    """-log(-log1p(-u)): the most noise where u is least."""
    return u.neg_().log1p_().neg_().log_().neg_()


def _seeded_hash(ranks: Tensor) -> Tensor:
    """-log(-log u) of u = h / (2^32 - 1): the most noise where the hash h is greatest."""
    u = (WORDS - 1 - ranks).double() / (WORDS - 1)
    return u.log_().clamp_(max=-(2.0**-32)).neg_().log_().neg_()


SCHEMES = (
    Scheme("vLLM before 0.33", _triton_rand),
    Scheme("vLLM 0.33", _centered_hash),
    Scheme("SGLang 0.5.23, seeded", _seeded_hash),
)


def count(
    scheme: Scheme, gap: float, num_tails: int, draws: int, device: torch.device, *, by_law: bool
) -> int:
    """Count the draws that one of `num_tails` tokens wins, each `gap` below token 0.

    Args:
        scheme: whose noise.
        gap, num_tails: of the distribution.
        draws: how many.
        device: where.
        by_law: draw the least rank of the tails from its law; else draw every tail's rank.
    """
    size = draws if by_law else max(1, (1 << 30) // num_tails)
    wins = 0
    for first in range(0, draws, size):
        n = min(size, draws - first)
        least = least_ranks(n, num_tails, device, by_law=by_law)
        head = scheme.noise(torch.randint(0, WORDS, (n,), device=device))
        wins += int((scheme.noise(least) - gap > head).sum())  # of equals the lower id, the head
    return wins


def least_ranks(n: int, num_tails: int, device: torch.device, *, by_law: bool) -> Tensor:
    """The least of `num_tails` uniform 32-bit words, n times; int64 [n].

    By its law it is floor(2^32 V) with P(V > v) = (1 - v)^num_tails, the law of the least of as
    many uniforms.
    """
    if by_law:
        uniforms = torch.rand(n, dtype=torch.float64, device=device)
        least = -torch.expm1(torch.log1p(-uniforms) / num_tails)
        return (least * WORDS).long()
    words = torch.randint(-(2**31), 2**31, (n, num_tails), dtype=torch.int32, device=device)
    return words.amin(1).long() + 2**31


def most_noise(scheme: Scheme) -> float:
    """The greatest noise that a scheme can draw."""
    return float(scheme.noise(torch.zeros(1, dtype=torch.int64)))


def expected_wins(scheme: Scheme, gap: float, num_tails: int, draws: int) -> float:
    """How many draws the tails win under a scheme, from its greatest noises; float64.

    A tail of noise g wins where the head's noise is below g - gap, which has probability
    exp(-exp(gap - g)). Tails that win together are too rare to count.
    """
    ranks = torch.arange(4096)
    odds = torch.exp(-torch.exp(gap - scheme.noise(ranks).double()))
    return float(odds.sum()) * num_tails / WORDS * draws
