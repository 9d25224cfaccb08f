"""Tensors as bytes side by side, broadcast whenever there are more than a buffer holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm.distributed.weight_transfer.nccl_common import Endpoint

BUFFER_BYTES = 1 << 30


def packed_nccl_broadcast_producer(
    iterator: Iterator[Any],
    group: Endpoint,
    src: int,
    post_iter_func: Callable[[Any], torch.Tensor],
) -> None:
    """Broadcast the tensors that `post_iter_func` makes of what is iterated over."""
    assert src == 0
    some: list[torch.Tensor] = []
    for item in iterator:
        some.append(post_iter_func(item).detach().contiguous().view(torch.uint8).view(-1))
        if sum(map(len, some)) > BUFFER_BYTES:
            group.broadcast(torch.cat(some))
            some = []
    if some:
        group.broadcast(torch.cat(some))
