"""`tailrace bench`: from flags to a table, a document and a report."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from server.bench.compare import compare
from server.bench.display import LiveDisplay
from server.bench.measure import BenchConfig, measure
from server.bench.report import write_report
from server.bench.results import Point, read_results, write_results
from server.bench.table import header, lines
from server.bench.target import find_model, parse_target
from server.bench.workloads import NAMES, Lengths
from server.command.bench_flags import COMPARE


def run_bench(given: dict[str, Any]) -> int:
    """Measure, or compare what was measured; 1 where a request failed."""
    if given["action"] == COMPARE:
        return _compare(given["a"], given["b"])
    config = _config(given)
    print(f"{config.model} at {config.target.url}\n{header()}", flush=True)
    display = LiveDisplay()

    def show(point: Point) -> None:
        display.close()
        print(*lines(point), sep="\n", flush=True)

    try:
        results = measure(config, display, show)
    finally:
        display.close()
    if given["output"] is not None:
        write_results(results, given["output"])
    if given["html"] is not None:
        write_report(results, given["html"])
    return int(any(point.errors for point in results.points))


def _compare(a: Path, b: Path) -> int:
    print(*compare(read_results(a), read_results(b)), sep="\n")
    return 0


def _config(given: dict[str, Any]) -> BenchConfig:
    """The configuration of flags that were given, whose server is there and has the model.

    Errors that can be known are reported before anything is measured, which may take hours.
    """
    names, concurrencies = _workloads(given["workloads"]), _concurrencies(given["concurrency"])
    for flag in ("output", "html"):
        _check_writable(f"--{flag}", given[flag])
    key = given["api_key"] or os.environ.get("OPENAI_API_KEY") or None
    target = parse_target(given["base_url"], key=key, verifies=not given["insecure"])
    lengths = Lengths(
        size=given["num_requests"], input=given["input_tokens"], output=given["output_tokens"]
    )
    return BenchConfig(
        target=target,
        model=asyncio.run(find_model(target, given["model"])),
        workloads=names,
        concurrencies=concurrencies,
        rate=given["rate"],
        repeat=given["repeat"],
        processes=given["processes"],
        seed=given["seed"],
        vocab_size=given["vocab_size"],
        lengths=lengths,
        omit_fields=_listed(given["omit_fields"]),
        text_prompts=given["text_prompts"],
        timeout_s=given["timeout"],
    )


def _workloads(words: str) -> list[str]:
    names = _listed(words)
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        named = f"no workload {unknown[0]!r}" if unknown else "none is named"
        raise ConfigError(f"--workloads: {named}; there are {', '.join(NAMES)}")
    return names


def _listed(words: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))


def _concurrencies(words: str) -> list[int]:
    try:
        numbers = [int(word) for word in _listed(words)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--concurrency must be numbers of 1 or more, got {words!r}")
    return numbers


def _check_writable(flag: str, path: Path | None) -> None:
    """Refuse a file that could not be written in the end."""
    if path is None:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from None
