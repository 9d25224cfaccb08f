"""What tests of the sampler's kernels run on, and by which parameters."""

from __future__ import annotations

import pytest
import torch

from sampling.device.triton_support import INTERPRETED
from sampling.race import LEAST_CUT, MASS_ERROR

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs Triton's interpreter"
    ),
    # The interpreter computes with numpy, which warns where a GPU gives NaN or 0 in silence.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="interpreter")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]

KEPT_ERROR = 4 * MASS_ERROR + LEAST_CUT  # two masses on each side, and what counts as no cut

EDITS = {
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.3,
    "logit_bias": {0: 3.0, 5: -2.0},
    "min_tokens": 30,
    "stop_token_ids": (7, 9),
    "bad_words": ((3,), (4, 6)),
}
