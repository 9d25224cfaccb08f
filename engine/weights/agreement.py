"""Lets ranks fail together: what one of them refuses is refused by all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import torch

from engine.contracts.named_weights import WeightError
from engine.contracts.weights import WeightUpdateError
from engine.errors import ControlError, kind_and_line
from sampling.device.ranks import RankExchange

Result = TypeVar("Result")

ROOM = 4096
"""Bytes of the words that ranks exchange."""


def agreed(work: Callable[[], Result], exchange: RankExchange) -> Result:
    """What `work`, which exchanges nothing itself, gives, if it raises on no rank.

    Raises:
        WeightUpdateError: on every rank, with the words of the first on which it raised.
    """
    try:
        result, error = work(), None
    except WeightUpdateError as refused:
        result, error = None, refused
    except (WeightError, ControlError) as refused:
        result, error = None, WeightUpdateError(str(refused), refused.code)
    except (torch.OutOfMemoryError, MemoryError) as failed:
        result, error = None, WeightUpdateError(kind_and_line(failed), "no_memory")
    except Exception as failed:  # files, sockets and pickles fail in many ways
        result, error = None, WeightUpdateError(kind_and_line(failed), "bad_source")
    if exchange.size == 1 and error is not None:
        raise error
    for raw in exchange.all_gather(_packed(error)):
        words = raw.numpy().tobytes().rstrip(b"\0")
        message, code = msgspec.json.decode(words, type=tuple[str, str])
        if code:
            raise WeightUpdateError(message, code) from error
    assert error is None
    return result  # type: ignore[return-value]  # no rank raised


def _packed(error: WeightUpdateError | None) -> torch.Tensor:
    words = ("", "") if error is None else (str(error)[: ROOM // 8], error.code)
    raw = msgspec.json.encode(words)
    return torch.frombuffer(bytearray(raw.ljust(ROOM, b"\0")), dtype=torch.uint8)
