"""The sampler: from logits to tokens and their logprobs, the whole of one step's sampling."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampling import torch_path, triton_path
from sampling.batch import Drawn, SamplingBatch
from sampling.logprob_kernels import MAX_TOP
from sampling.logprobs import LogprobsOutput, gather_logprobs
from sampling.rows import FLAGS, PENALIZED, RANDOM, SamplingNeeds, SamplingRows
from sampling.triton_support import kernels_run_on

__all__ = ["Sampler", "SamplerConfig", "SamplerOutput", "SamplingBatch"]


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """How tokens may be drawn.

    Attributes:
        use_fp64_gumbel: promise float64 noise on every path; FlashInfer is then never used.
        flashinfer: whether FlashInfer draws eligible rows: where it is faster, always, or never.
    """

    use_fp64_gumbel: bool = False
    flashinfer: Literal["auto", "always", "never"] = "auto"


class SamplerOutput(NamedTuple):
    """What was drawn, on the device."""

    token_ids: Tensor  # int32 [n]; 0 where bad
    bad: Tensor  # bool [n]: NaN, +inf or no finite logit
    logprobs: LogprobsOutput | None


class Sampler:
    """Draws tokens for batches of rows.

    Attributes:
        rows_by_path: how many logit rows each path has drawn: native, flashinfer, greedy.
    """

    def __init__(self, config: SamplerConfig, rows: SamplingRows) -> None:
        """Raises `ValueError` where `config` insists on a path that cannot draw."""
        if config.flashinfer == "always":
            raise ValueError("FlashInfer's sampler is not available in this version")
        self._rows = rows
        self.rows_by_path: Counter[str] = Counter(native=0, flashinfer=0, greedy=0)

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        """Draw one token for each logit row.

        Args:
            logits: [n, width >= vocab_size], float32, bfloat16 or float16, rows contiguous with
                any stride between them; left as they are. Columns beyond the vocabulary are
                ignored.
            batch: the rows they belong to.
        """
        self.count(batch.rows_np)
        return self.draw(logits, batch)

    def draw(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        """The device's part of a call, which a CUDA graph may hold where `is_capturable`."""
        path = triton_path if kernels_run_on(self._rows.device) else torch_path
        drawn = path.draw(logits, batch, self._rows)
        token_ids = drawn.token_ids.masked_fill(drawn.bad, 0)
        logprobs = drawn.logprobs or self._logprobs(logits, drawn, token_ids, batch)
        if batch.needs.penalized:  # after logprobs, which report what the token was drawn from
            penalized = self._rows.ints[batch.rows, FLAGS] & PENALIZED != 0
            self._rows.counts.add(batch.rows, token_ids, penalized & ~drawn.bad)
        return SamplerOutput(token_ids.to(torch.int32), drawn.bad, logprobs)

    def _logprobs(
        self, logits: Tensor, drawn: Drawn, token_ids: Tensor, batch: SamplingBatch
    ) -> LogprobsOutput | None:
        if drawn.offsets is None:
            return None
        needs = batch.needs
        return gather_logprobs(
            logits[:, : self._rows.vocab_size] if drawn.values is None else drawn.values,
            drawn.offsets,
            token_ids,
            num_top=needs.num_top,
            explicit_ids=self._rows.explicit_ids[batch.rows, : needs.num_explicit],
        )

    def count(self, rows_np: npt.NDArray[np.int32]) -> None:
        """Count rows [n] by the path that draws them."""
        random = int(np.count_nonzero(self._rows.flags_np[rows_np] & RANDOM))
        self.rows_by_path["native"] += random
        self.rows_by_path["greedy"] += len(rows_np) - random

    def is_capturable(self, needs: SamplingNeeds) -> bool:
        """Whether `draw` for these needs looks at nothing on the host."""
        return self._rows.device.type == "cuda" and needs.num_top <= MAX_TOP
