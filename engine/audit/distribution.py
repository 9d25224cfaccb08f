"""A position's logits after a request's parameters, and what small errors of them could change.

Stages are those of the noise contract (`docs/noise.md`), in float64. With errors of up to e in each
logit over T (`slack`), a token is *surely* or only *possibly* kept by the filters:

    min-p   s_i >= max s + log min_p, give or take 2 e
    top-k   fewer than k tokens are above s_i, give or take 2 e
    top-p   the mass above s_i is less than top_p of all that min-p and top-k left, where masses are
            off by a factor of exp(e) each, in the direction that matters
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sampling import reference
from sampling.params import SamplingParams
from sampling.reference import Floats

Bools = npt.NDArray[np.bool_]


def edited(
    raw: npt.NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
) -> Floats:
    """The logits after bias, masks and penalties, float64 [vocab_size]; -inf where masked."""
    logits = raw.astype(np.float64)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    logits[_banned(len(logits), params, [*prompt, *output], len(output))] = -math.inf
    if params.penalized:
        counts = np.bincount(np.asarray(output, dtype=np.int64), minlength=len(logits))
        in_prompt = np.zeros(len(logits), dtype=bool)
        in_prompt[list(prompt)] = True
        logits = reference.penalize(
            logits,
            counts,
            in_prompt,
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
        )
    return logits


def _banned(
    vocab_size: int, params: SamplingParams, history: list[int], num_output: int
) -> npt.NDArray[np.int64]:
    banned: set[int] = set()
    if num_output < params.min_tokens:
        banned.update(params.stop_token_ids)
    for *begin, last in params.bad_words:
        if len(history) >= len(begin) and history[len(history) - len(begin) :] == begin:
            banned.add(last)
    if params.allowed_token_ids is not None:
        banned.update(set(range(vocab_size)) - set(params.allowed_token_ids))
    return np.array(sorted(banned), dtype=np.int64)


def kept(scaled: Floats, params: SamplingParams) -> Bools:
    """What the filters keep of logits over T, bool [vocab_size]."""
    return reference.kept(
        scaled, temperature=1.0, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p
    )


def bounds(scaled: Floats, params: SamplingParams, slack: float) -> tuple[Bools, Bools]:
    """Which tokens the filters surely and possibly keep where logits are off.

    Args:
        scaled: logits over T, float64 [vocab_size].
        slack: each is off by at most that.
    """
    allowed = scaled > -math.inf
    sure, possible = allowed.copy(), allowed.copy()
    if params.min_p > 0.0:
        least = float(scaled.max()) + math.log(params.min_p)
        sure &= scaled >= least + 2 * slack
        possible &= scaled >= least - 2 * slack
    if 0 < params.top_k < int(allowed.sum()):
        descending = np.sort(scaled)[::-1]
        sure &= scaled > descending[params.top_k] + 2 * slack
        possible &= scaled >= descending[params.top_k - 1] - 2 * slack
    if params.top_p < 1.0:
        _bound_top_p(scaled, params.top_p, slack, sure, possible)
    return sure, possible


def _bound_top_p(scaled: Floats, top_p: float, slack: float, sure: Bools, possible: Bools) -> None:
    """Narrow `sure` and `possible` by top-p, in place."""
    ascending = np.sort(scaled)
    order = np.argsort(scaled, kind="stable")
    weights = np.exp(scaled - scaled.max())
    sums = [
        np.concatenate(([0.0], np.cumsum((weights * kept)[order]))) for kept in (sure, possible)
    ]
    sure_total, possible_total = sums[0][-1], sums[1][-1]
    up, down = math.exp(slack), math.exp(-slack)
    # What is above a token at least, and the rest at most; then the other way round.
    at_least = sure_total - sums[0][np.searchsorted(ascending, scaled + 2 * slack, "right")]
    at_most = possible_total - sums[1][np.searchsorted(ascending, scaled - 2 * slack, "left")]
    at_most = np.maximum(at_most - weights * possible, 0.0)  # itself is not above
    rest = (possible_total - at_least) * up
    possible &= at_least * down <= top_p * (at_least * down + rest)
    rest = np.maximum(sure_total - at_most, weights) * down
    sure &= at_most * up < top_p * (at_most * up + rest)
