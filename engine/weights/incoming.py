"""The tensors of one command as they come in, and what becomes of those that were refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

from engine.contracts.weights import AnySource, WeightUpdateError
from engine.weights.agreement import agreed
from engine.weights.groups import WeightGroups
from engine.weights.tensor_sources import ReceivedTensor, broadcast_over, received
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)


class IncomingTensors(Iterator[ReceivedTensor]):
    """The tensors of a source, each received as it is asked for; see `received`."""

    def __init__(
        self, source: AnySource, groups: WeightGroups, device: torch.device, exchange: RankExchange
    ) -> None:
        self._groups, self._exchange = groups, exchange
        self._group = broadcast_over(source, groups)
        self._tensors = received(source, groups, device, exchange)
        self._failure: Exception | None = None

    def __next__(self) -> ReceivedTensor:
        try:
            return next(self._tensors)
        except StopIteration:
            raise
        except Exception as failure:
            self._failure = failure
            raise

    def pass_over(self) -> None:
        """Receive what a trainer has announced and still broadcasts, and drop it.

        A group is in order: what is left in it comes before the tensors of the next update, which
        would be written under other names. Where it cannot be received on every rank, all leave the
        group, so that the next update is refused.
        """
        if self._group is None:
            return
        try:
            agreed(self._receive_rest, self._exchange)
        except WeightUpdateError as error:
            logger.warning("leaving group %r, whose tensors are lost: %s", self._group, error)
            self._groups.leave(self._group)

    def _receive_rest(self) -> None:
        if self._failure is not None:
            raise self._failure
        for _ in self:
            pass
