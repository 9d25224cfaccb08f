"""The sampler: it draws a step's tokens from the logits, with their logprobs.

By default it lets FlashInfer draw the rows it may where `warm_up.time_samplers` found it
faster.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampling import warm_up
from sampling.batch import SamplerOutput, SamplingBatch
from sampling.device.compiling import compiling_together
from sampling.device.triton_support import kernels_run_on
from sampling.kernels.logprobs import MAX_TOP
from sampling.paths import flashinfer, torch_path, triton_path
from sampling.rows import FLASHINFER, RANDOM, SamplingNeeds, SamplingRows

logger = logging.getLogger(__name__)

__all__ = ["Sampler", "SamplerConfig", "SamplerOutput", "SamplingBatch"]


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """The choice of paths that may draw tokens.

    Attributes:
        use_fp64_gumbel: promise float64 noise on every path; FlashInfer is then never used.
        flashinfer: whether FlashInfer draws eligible rows: where it is faster, always, or never.
    """

    use_fp64_gumbel: bool = False
    flashinfer: Literal["auto", "always", "never"] = "auto"


class Sampler:
    """Draws tokens for batches of rows.

    Attributes:
        rows_by_path: how many logit rows each path has drawn: native, flashinfer, greedy.
    """

    def __init__(self, config: SamplerConfig, rows: SamplingRows) -> None:
        """Choose the paths for the device of `rows`.

        Raises:
            ValueError: `config` insists on a path that cannot draw there.
        """
        if rows.device.type == "cuda" and not kernels_run_on(rows.device):
            raise ValueError("sampling on CUDA needs the package triton")
        self._rows = rows
        self._flashinfer = None
        if rows.shard.is_whole:  # it draws from whole vocabularies
            self._flashinfer = flashinfer.choose(
                config.flashinfer, use_fp64_gumbel=config.use_fp64_gumbel, device=rows.device
            )
        # Under "auto" the warm-up decides; until then the native sampler draws.
        self._uses_flashinfer = self._flashinfer is not None and config.flashinfer == "always"
        self.rows_by_path: Counter[str]
        self.forget_counts()

    def warm_up(
        self, num_rows: int, *, max_top: int = MAX_TOP, dtype: torch.dtype = torch.float32
    ) -> None:
        """Compile every kernel that draws may need; under "auto", time FlashInfer and choose.

        Call it on CUDA before graphs are captured and requests served; it does nothing on a CPU.

        Args:
            num_rows: rows of a large batch.
            max_top: top tokens a request may ask for.
            dtype: of the logits.
        """
        if self._rows.device.type != "cuda":
            return
        with compiling_together():
            warm_up.compile_kernels(self._rows, dtype, max_top)
        if self._flashinfer is None:
            return
        native_ms, flashinfer_ms = warm_up.time_samplers(
            self._flashinfer, num_rows, self._rows, dtype
        )
        if not self._uses_flashinfer:
            self._uses_flashinfer = flashinfer_ms < native_ms
        logger.info(
            "top-k and top-p of %d rows: native %.3f ms, FlashInfer %.3f ms; %s draws them",
            num_rows,
            native_ms,
            flashinfer_ms,
            "FlashInfer" if self._uses_flashinfer else "the native sampler",
        )

    @property
    def description(self) -> str:
        """The paths that draw rows here, in words."""
        if self._rows.device.type != "cuda":
            return "torch"
        return "FlashInfer for top-k and top-p, native" if self._uses_flashinfer else "native"

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
        """Draw without counting: the part of a call that a graph may hold where `is_capturable`."""
        if kernels_run_on(self._rows.device):
            used = self._flashinfer if self._uses_flashinfer and batch.needs.flashinfer else None
            return triton_path.draw(logits, batch, self._rows, used)
        return torch_path.draw(logits, batch, self._rows)

    def count(self, rows_np: npt.NDArray[np.int32], *, verified: bool = False) -> None:
        """Count rows [n] by the path that draws them; FlashInfer never draws `verified` rows."""
        flags = self._rows.flags_np[rows_np]
        random = int(np.count_nonzero(flags & RANDOM))
        may_use_flashinfer = self._uses_flashinfer and not verified
        elsewhere = int(np.count_nonzero(flags & FLASHINFER)) if may_use_flashinfer else 0
        self.rows_by_path["native"] += random - elsewhere
        self.rows_by_path["flashinfer"] += elsewhere
        self.rows_by_path["greedy"] += len(rows_np) - random

    def forget_counts(self) -> None:
        """Begin `rows_by_path` anew."""
        self.rows_by_path = Counter(native=0, flashinfer=0, greedy=0)

    def is_capturable(self, needs: SamplingNeeds) -> bool:
        """Whether `draw` for these needs looks at nothing on the host."""
        on_cuda = self._rows.device.type == "cuda"
        return on_cuda and not (self._uses_flashinfer and needs.flashinfer)
