"""What `tailrace bench` found, as a document of JSON that it writes and reads again."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from engine.errors import ConfigError
from server.bench.figures import Curves, Figures


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of a workload: its figures, and how often each error happened."""

    figures: Figures
    errors: dict[str, int] = {}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A workload at one concurrency or rate.

    Attributes:
        concurrency: requests under way at once; None where they arrive at a rate.
        rate: arrivals a second.
        num_requests: of each pass.
        passes: all of them, each on prompts of its own.
        best: the index of the pass that counts.
        curves: what is drawn of that pass.
    """

    workload: str
    concurrency: int | None
    rate: float | None
    num_requests: int
    passes: list[Pass]
    best: int
    curves: Curves

    @property
    def figures(self) -> Figures:
        """Those of the best pass."""
        return self.passes[self.best].figures

    @property
    def errors(self) -> dict[str, int]:
        """Errors of all passes together."""
        counts: dict[str, int] = {}
        for each in self.passes:
            for error, count in each.errors.items():
                counts[error] = counts.get(error, 0) + count
        return counts

    @property
    def where(self) -> str:
        """The concurrency or rate, in words."""
        return f"{self.rate:g}/s" if self.concurrency is None else str(self.concurrency)


class BenchResults(msgspec.Struct, frozen=True, kw_only=True):
    """All that one command measured, and how.

    Attributes:
        started: when, in UTC.
        processes: client processes. cores: of the machine that they ran on.
        seed, vocab_size, input_tokens, output_tokens: what the prompts were made of.
    """

    tailrace_bench: Literal[1] = 1
    version: str
    started: str
    base_url: str
    model: str
    processes: int
    cores: int
    platform: str
    seed: int
    vocab_size: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    points: list[Point]


def write_results(results: BenchResults, path: Path) -> None:
    """Write the document, indented."""
    raw = msgspec.json.encode(results)
    path.write_bytes(msgspec.json.format(raw, indent=1) + b"\n")


def read_results(path: Path) -> BenchResults:
    """The document of a file.

    Raises:
        ConfigError: it cannot be read, or is no such document.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchResults)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not what tailrace bench writes: {error}") from None
