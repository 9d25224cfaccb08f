"""What is decoded equals what was encoded."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from engine.messages.codec import decode_message, decode_output, encode
from engine.messages.request import FrontendMessage, PromptLogprobsParams, Request
from engine.messages.step_output import PromptLogprobs, StepOutput
from sampling.params import SamplingParams
from tests.engine.logprob_cases import assert_same, logprob_arrays
from tests.engine.some_stats import STATS


def test_message_round_trip() -> None:
    params = SamplingParams(
        seed=-(2**63), logit_bias={3: -1.5}, bad_words=((1, 2), (3,)), logprob_token_ids=(7, 7)
    )
    request = Request(
        handle=2**40,
        prompt_token_ids=np.array([1, 2, 3], dtype=np.int32),
        params=params,
        n=2,
        max_tokens=0,
        prompt_logprobs=PromptLogprobsParams(start=2, token_ids=(1,)),
    )
    message = FrontendMessage(submit=[request], abort=[(1, -1), (2, 0)])
    assert_same(message, decode_message(encode(message)))


@pytest.mark.parametrize("num_top", [0, 3])
def test_output_round_trip(num_top: int) -> None:
    output = StepOutput(
        handles=np.array([1, 2], dtype=np.int64),
        choices=np.array([0, 1], dtype=np.int32),
        num_new=np.array([2, 0], dtype=np.int32),
        finish=np.array([0, 3], dtype=np.uint8),
        num_cached=np.array([16, 0], dtype=np.int32),
        token_ids=np.array([5, 6], dtype=np.int32),
        logprobs=logprob_arrays(2, num_top, 2),
        origins=np.array([1, 3], dtype=np.uint8),
        times=np.array([[1.0, 2.0, 0.0], [1.5, 0.0, 0.0]]),
        prompt_logprobs=[PromptLogprobs(handle=1, start=1, logprobs=logprob_arrays(4, 0, 0))],
        errors={2: "why"},
        stats=STATS,
    )
    assert_same(output, decode_output(encode(output)))


def test_what_is_not_a_message_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_message(b"\x00garbage")
