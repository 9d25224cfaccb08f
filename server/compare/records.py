"""A trainer's logprobs: a file with a JSON object a line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.errors import ConfigError


class TrainerSequence(msgspec.Struct, frozen=True):
    """One sequence of a trainer.

    Attributes:
        token_ids: prompt and completion.
        logprobs: of the tokens from `start` on, in nats; None where the trainer has none.
        start: by default the values are those of the last tokens.
    """

    token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=2)]
    logprobs: Annotated[list[float | None], Meta(min_length=1)]
    start: int | None = None

    @property
    def first(self) -> int:
        """The position of the first value."""
        count = len(self.token_ids) - len(self.logprobs)
        return count if self.start is None else self.start


def read_sequences(path: Path) -> Iterator[TrainerSequence]:
    """The sequences of a file; raises `ConfigError` for a line that is none, by its number."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            sequence = msgspec.json.decode(line, type=TrainerSequence)
        except (msgspec.DecodeError, RecursionError) as error:
            words = _not_finite(line) or str(error)
            raise ConfigError(f"{path}, line {number}: {words}") from None
        if sequence.first < 1 or sequence.first + len(sequence.logprobs) > len(sequence.token_ids):
            raise ConfigError(
                f"{path}, line {number}: {len(sequence.logprobs)} logprobs from position "
                f"{sequence.first} on do not fit {len(sequence.token_ids)} token_ids; the first "
                "token has none"
            )
        yield sequence


def _not_finite(line: bytes) -> str | None:
    """Says that a line has a NaN or Infinity, which Python's `json` writes and JSON has not."""
    found: list[str] = []
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(line, parse_constant=found.append)
    if not found:
        return None
    return f"{found[0]} is not a finite number; null stands for a value that there is not"
