"""FlashInfer's prefill where there is none: it takes what that takes, and computes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from engine.attention import cuda, flashinfer, modules
from engine.attention.modules import Loading
from engine.startup import kernels


class _Wrapper:
    """A plan's arguments are on the host, its blocks and a run's tensors on the GPU."""

    def plan(
        self,
        query_starts: torch.Tensor,
        starts: torch.Tensor,
        blocks: torch.Tensor,
        last_lens: torch.Tensor,
        *sizes: int,
        **options: Any,
    ) -> None:
        assert blocks.is_cuda
        assert not any(each.is_cuda for each in (query_starts, starts, last_lens))

    def run(
        self, q: torch.Tensor, cache: torch.Tensor, out: torch.Tensor, return_lse: bool = False
    ) -> Any:
        assert q.is_cuda
        assert cache.is_cuda
        assert (q.dtype, q.shape) == (out.dtype, out.shape)
        assert cache.dtype == q.dtype
        return (out, torch.zeros(q.shape[:2], device=q.device)) if return_lse else out


@contextlib.contextmanager
def pretended_flashinfer() -> Iterator[None]:
    """Pretend that FlashInfer is installed and built, and that every prefill pays for its plan."""
    done: Future[None] = Future()
    done.set_result(None)
    with pytest.MonkeyPatch.context() as patch:
        for module in (flashinfer, cuda):
            patch.setattr(module, "is_installed", lambda: True)
        for module in (flashinfer, modules, kernels):
            patch.setattr(module, "loading", lambda module: Loading(done, was_built=True))
        patch.setattr(flashinfer, "_wrappers", lambda *_: [_Wrapper()] * flashinfer.IN_FLIGHT)
        patch.setattr(cuda, "UNPLANNED_FLOPS", 0)
        yield
