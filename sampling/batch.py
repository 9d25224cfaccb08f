"""What goes into a draw and what comes out of it, whichever path makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sampling.rows import SamplingNeeds

if TYPE_CHECKING:  # logprobs' kernels take a batch
    from sampling.logprobs import LogprobsOutput


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Which rows the logits belong to; n = num_logits."""

    rows: Tensor  # int32 [n] on the device, logit row -> sampling row
    positions: Tensor  # int64 [n] on the device, absolute position of the token to draw
    rows_np: npt.NDArray[np.int32]  # [n], the same as `rows`
    needs: SamplingNeeds


class Drawn(NamedTuple):
    """A path's result, on the device; penalties have counted the tokens."""

    token_ids: Tensor  # int32 [n], 0 where bad
    bad: Tensor  # bool [n]
    logprobs: LogprobsOutput | None
