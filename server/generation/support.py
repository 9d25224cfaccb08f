"""Sampling masks: the ids that could have been drawn at each position.

After processing, what masks and filters left has a finite logprob, and all else -inf. So the mask
of a position is the finite part of a top list that is long enough.
"""

from __future__ import annotations

import msgspec
import numpy as np

from engine.arrays import LogprobArrays
from sampling.params import SamplingParams
from server.errors import bad_request
from server.generation.served import ServedModel


def with_support(
    params: SamplingParams, served: ServedModel, mode_param: str, top_k_param: str
) -> SamplingParams:
    """Parameters whose top lists hold every id that can be drawn; raises `ApiError`.

    Args:
        mode_param, top_k_param: what the client calls these fields.
    """
    if params.logprobs_mode != "processed_logprobs":
        raise bad_request(
            mode_param,
            f'{mode_param} must be "processed_logprobs" with return_sampling_mask, '
            f"got {params.logprobs_mode}",
        )
    vocab_size, most = served.info.vocab_size, served.max_drawn_top
    widest = min(params.top_k or vocab_size, vocab_size)
    if params.temperature == 0:
        widest = 1
    if most != -1 and widest > most:
        raise bad_request(
            top_k_param,
            f"return_sampling_mask needs top lists of {widest} ids, and the server has "
            f"--max-logprobs {most}: lower {top_k_param} or raise that",
        )
    return msgspec.structs.replace(params, logprobs=max(params.logprobs or 0, widest))


def support_of(arrays: LogprobArrays) -> list[list[int]]:
    """The ids that could have been drawn at each position, likeliest first."""
    keep = np.isfinite(arrays.top_logprobs)
    return [row[kept].tolist() for row, kept in zip(arrays.top_ids, keep, strict=True)]
