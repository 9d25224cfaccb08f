"""The exact distribution of a few drawn tokens, by enumeration with textbook filters.

Only a handful of ids are allowed, so that every sequence of them can be put through transformers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from sampling import reference
from sampling.params import SamplingParams

Prefix = tuple[int, ...]


def distribution(
    masked: np.ndarray, prompt: Sequence[int], prefix: Prefix, params: SamplingParams
) -> np.ndarray:
    """p of each id after a prompt and a prefix, by textbook penalties and filters.

    Args:
        masked: float64 [vocab_size], the logits, -inf where an id is not allowed.
    """
    num_ids = len(masked)
    counts = np.bincount(np.array(prefix, dtype=np.int64), minlength=num_ids)
    masked = reference.penalize(
        masked,
        counts,
        np.isin(np.arange(num_ids), prompt),
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )
    left = reference.kept(masked, temperature=params.temperature, top_p=params.top_p)
    weights: np.ndarray = np.exp((masked - masked[left].max()) / params.temperature) * left
    weights /= weights.sum()
    return weights


class Target:
    """What a request must draw: p of the next token after each prefix of allowed ids."""

    def __init__(
        self, model: PreTrainedModel, prompt: Sequence[int], params: SamplingParams, length: int
    ) -> None:
        assert params.allowed_token_ids is not None
        self.ids = tuple(params.allowed_token_ids)
        self._prompt, self._params = list(prompt), params
        self.logits: dict[Prefix, np.ndarray] = {}
        with torch.inference_mode():
            for size in range(length):
                prefixes = list(itertools.product(self.ids, repeat=size))
                inputs = torch.tensor([self._prompt + list(prefix) for prefix in prefixes])
                logits = model(inputs, use_cache=False).logits[:, -1].double().numpy()
                self.logits |= dict(zip(prefixes, logits, strict=True))

    def next_token(self, prefix: Prefix) -> dict[int, float]:
        """p of each allowed id after a prefix."""
        logits = self.logits[prefix]
        masked = np.full(len(logits), -np.inf)
        masked[list(self.ids)] = logits[list(self.ids)]
        weights = distribution(masked, self._prompt, prefix, self._params)
        return {token: float(weights[token]) for token in self.ids}

    def sequences(self, length: int) -> Iterator[tuple[Prefix, float]]:
        """Every sequence of so many allowed ids and its probability."""
        probabilities: dict[Prefix, float] = {(): 1.0}
        for _ in range(length):
            probabilities = {
                (*prefix, token): before * p
                for prefix, before in probabilities.items()
                for token, p in self.next_token(prefix).items()
            }
        yield from probabilities.items()
