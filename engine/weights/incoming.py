"""The tensors of one command as they come in, and what becomes of those that were refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.contracts.weights import AnySource, DescribedSource, WeightUpdateError
from engine.weights.agreement import agreed
from engine.weights.groups import WeightGroups
from engine.weights.tensor_sources import ReceivedTensor, group_of, has_weights, received
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)


class IncomingTensors(Iterator[ReceivedTensor]):
    """The tensors of a source, each received as it is asked for; see `received`.

    Ranks make it alike: whether tensors are broadcast or read from a folder they decide together.
    """

    def __init__(
        self, source: AnySource, groups: WeightGroups, device: torch.device, exchange: RankExchange
    ) -> None:
        self._groups, self._exchange = groups, exchange
        self._failure: Exception | None = None
        self._group = group_of(source, groups)
        if isinstance(source, DescribedSource) and self._group is not None:
            self._prefer_folder(Path(source.path))
        self._tensors = received(source, groups, device, exchange, from_folder=self._group is None)

    def _prefer_folder(self, folder: Path) -> None:
        """Read a folder in which any rank sees weights; where one cannot look, nothing is received.

        A rank that does not see them yet refuses the update, rather than wait for a broadcast.
        """
        try:
            own = agreed(lambda: has_weights(folder), self._exchange)
        except WeightUpdateError as failure:
            self._failure = failure
        else:
            if self._exchange.all_gather(torch.tensor([own])).any():
                self._group = None

    def __next__(self) -> ReceivedTensor:
        if self._failure is not None:
            raise self._failure
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
        for _ in self:
            pass
