"""What an audit takes in and what it finds. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from engine.arrays import Float32Array
from sampling.params import SamplingParams

Reported = list[tuple[int, float]]
"""Ids and raw logprobs, in nats, as a reply has them of one position; -9999 stands for -inf."""


class DrawnChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a reply, with what decided its tokens.

    Attributes:
        line: of the file, from 1.
        index: in the reply.
        choice: of the noise contract, which of its prompt's n choices.
        prompt: token ids.
        output: token ids that were drawn, in order.
        params: the request's, with a seed unless greedy.
        logprobs: what the reply reports of each drawn token's position; None where it does not.
        refusal: why it cannot be audited; None where it can.
    """

    line: int
    index: int
    choice: int
    prompt: list[int]
    output: list[int]
    params: SamplingParams
    logprobs: list[Reported] | None = None
    refusal: str | None = None


class Redrawn(msgspec.Struct, frozen=True, kw_only=True):
    """One token beside the one that the contract gives.

    Attributes:
        position: absolute, as in the noise contract.
        token: that the reply has.
        derived: that the contract gives for these logits.
        noise: how far logits must be off, each by at most so many nats, for the reply's token to be
            drawn: 0 where it is the derived one, inf where no error of logits explains it.
        logprob: of the reply's token after all processing; 0 where greedy.
        gap: the largest difference of reported raw logprobs from those of these logits, in nats.
    """

    position: int
    token: int
    derived: int
    noise: float
    logprob: float
    gap: float = 0.0


class LogitSource(Protocol):
    """Says which logits the audited model gives."""

    vocab_size: int
    max_model_len: int
    dtype: str

    def logits(self, token_ids: list[int], start: int) -> Iterator[Float32Array]:
        """Yield the raw logits that each token from position `start` on was drawn from.

        Args:
            token_ids: prompt and output.
            start: at least 1.

        Yields:
            float32 [vocab_size], one for each position from `start` to the last, in order.
        """
        ...


def spread(
    ids: npt.NDArray[Any], values: npt.NDArray[Any], vocab_size: int
) -> Iterator[Float32Array]:
    """Put each position's values at their ids, float32 [vocab_size] a position.

    Args:
        ids, values: [positions, vocab_size or more]; every id once in the first `vocab_size`.
    """
    for own_ids, own_values in zip(ids[:, :vocab_size], values[:, :vocab_size], strict=True):
        logits = np.full(vocab_size, -np.inf, dtype=np.float32)
        logits[own_ids] = own_values
        yield logits
