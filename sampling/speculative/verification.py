"""Verification of a step's drafts: which of them are accepted, and the token after them.

At each depth the target's p is what the sampler would draw from there, with every mask, bias,
penalty and filter of the row; q is what the draft was drawn from. Depth by depth:

    standard   accept x when u < p(x) / q(x), else draw from max(p - q, 0) normalised
               (Leviathan et al. 2023, algorithm 1)
    block      accept the longest prefix of drafts that passes a test of its own (Sun et al. 2024,
               arXiv 2403.10444): of r_i = min(r_{i-1} p(x_i) / q(x_i), 1) and of what is left
               there, Z_i = sum max(r_i p - q, 0), prefix i passes when u_i < Z_i / (Z_i + 1 - r_i),
               all drafts when u_k < r_k; then draw from max(r_i p - q, 0) normalised. More drafts
               are accepted than under standard
    synthetic  accept at a given rate, for studies of cost; else draw as standard does, from p
               without x where there are no draft logits
    coupled    accept when x is the token that the plain sampler draws, else that token

Without draft logits q is one-hot, and standard and block are coupled. In law this is their own
rule, accept with probability p(x), else draw from p without x: a token y of p is x with
probability p(x), and given y != x it has the law of p without x. It is better than a coin, since
tokens do not depend on which drafts there were.

A greedy row draws its highest token; it accepts x when x is that token (at the given rate where
synthetic). The token after the last accepted draft, at a depth without a draft, or in a row
without drafts is the plain sampler's own token at that position, bit for bit.
`sampling.speculative.draws` says which stream of noise decides what.

Penalties and bad words of a depth see the drafts before it in the token history; `SamplingBatch.
depths` says how many they are. A row accepts nothing after its room or a bad logit row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from torch import Tensor

from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.device.triton_support import kernels_run_on
from sampling.rows import SamplingRows
from sampling.speculative import torch_verification, triton_verification

__all__ = ["Drafts", "Method", "Verification", "conditional_rates", "rates_of_length", "verify"]

Method: TypeAlias = Literal["standard", "block", "synthetic", "coupled"]


def verify(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    drafts: Drafts,
    method: Method = "standard",
    rates: Tensor | None = None,
) -> Verification:
    """Verify the drafts of a step and draw one token more for each row.

    On CUDA it looks at nothing on the host but shapes and `batch.needs`, so that a graph can hold
    it; FlashInfer takes no part.

    Args:
        logits: [n, width >= vocab_size], as for `Sampler`.
        batch: the sampling row and position of each logit row, and `depths` (0 where a row has
            no drafts). The history of `rows` must hold a row's drafts at their positions.
        rows: the parameters, flushed.
        drafts: what is verified; the batch's logit rows are those of its rows.
        method: see the module.
        rates: float64 [k] on the device, `conditional_rates`; for synthetic only.
    """
    if drafts.logits is None and method in ("standard", "block"):
        method = "coupled"
    if kernels_run_on(logits.device):
        return triton_verification.verify(logits, batch, rows, drafts, method, rates)
    return torch_verification.verify(logits, batch, rows, drafts, method, rates)


def rates_of_length(length: float, k: int) -> list[float]:
    """Acceptance rates by position that make a step enter `length` tokens on average.

    Args:
        length: in [1, k + 1]; its whole part is always entered.
    """
    return [min(max(length - 1.0 - depth, 0.0), 1.0) for depth in range(k)]


def conditional_rates(rates: Sequence[float]) -> list[float]:
    """Each depth's acceptance rate given that all before it accepted, from the rates by position.

    Args:
        rates: how often the draft of each position is accepted at all, in [0, 1], not increasing.
    """
    before = [1.0, *rates[:-1]]
    return [rate / last if last else 0.0 for rate, last in zip(rates, before, strict=True)]
