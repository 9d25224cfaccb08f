"""Every workload at every concurrency, pass by pass."""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

from server.bench.figures import curves, errors, figures
from server.bench.load import LoadProgress, Share, ShareResult
from server.bench.processes import ClientProcesses
from server.bench.results import BenchResults, Pass, Point
from server.bench.target import Target
from server.bench.workloads import Lengths, Workload, in_words, workload
from server.version import VERSION

PASSES_A_SEED = 1000
"""Seeds of prompts that belong to one `--seed`: no two passes share a prompt."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured.

    Attributes:
        workloads: by name.
        concurrencies: each workload is measured at each of them, as far as it has as many requests.
        rate: requests a second of the workload whose requests arrive.
        repeat: passes, each on fresh prompts; the best counts.
        processes: that send requests, at most.
        text_prompts: send words in place of token ids, to a server that takes none.
        omit_fields: fields that are left out of bodies, for a server that refuses them.
        timeout_s: longest wait for a reply.
    """

    target: Target
    model: str
    workloads: Sequence[str]
    concurrencies: Sequence[int]
    rate: float
    repeat: int
    processes: int
    seed: int
    vocab_size: int
    lengths: Lengths
    omit_fields: Sequence[str]
    text_prompts: bool = False
    timeout_s: float


OnProgress = Callable[[str, LoadProgress, int], None]
"""Called with the name of a pass, how far it is, and how many requests it has."""
OnPoint = Callable[[Point], None]


def measure(config: BenchConfig, on_progress: OnProgress, on_point: OnPoint) -> BenchResults:
    """Measure all that is asked for, telling each point as soon as it is known."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    points = []
    with ClientProcesses(config.processes) as processes:
        for name in config.workloads:
            for point in _Measuring(config, processes, on_progress).points(name):
                points.append(point)
                on_point(point)
    return BenchResults(
        version=VERSION,
        started=started,
        base_url=config.target.url,
        model=config.model,
        processes=config.processes,
        cores=os.cpu_count() or 1,
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        seed=config.seed,
        vocab_size=config.vocab_size,
        input_tokens=config.lengths.input,
        output_tokens=config.lengths.output,
        points=points,
    )


class _Measuring:
    """Measures one workload."""

    def __init__(
        self, config: BenchConfig, processes: ClientProcesses, on_progress: OnProgress
    ) -> None:
        self._config = config
        self._processes = processes
        self._on_progress = on_progress
        self._seed = config.seed * PASSES_A_SEED

    def points(self, name: str) -> Iterator[Point]:
        """One at each concurrency that differs for it."""
        made = self._make(name)
        if made.arrives:
            yield self._point(name, None)
            return
        most = len(made.bodies)
        for concurrency in dict.fromkeys(min(each, most) for each in self._config.concurrencies):
            yield self._point(name, concurrency)

    def _make(self, name: str) -> Workload:
        """The next pass's requests."""
        made = workload(name, self._config.vocab_size, self._seed, self._config.lengths)
        self._seed += 1
        return made

    def _point(self, name: str, concurrency: int | None) -> Point:
        rate = self._config.rate if concurrency is None else None
        passes, drawn = [], []
        for attempt in range(self._config.repeat):
            made = self._make(name)
            where = f"{rate:g}/s" if concurrency is None else f"x {concurrency}"
            title = f"{name} {where}, pass {attempt + 1} of {self._config.repeat}"
            results = self._pass(made, concurrency, title)
            passes.append(Pass(figures=figures(results, made.num_counted), errors=errors(results)))
            drawn.append(curves(results))
        best = max(range(len(passes)), key=lambda i: _merit(passes[i], made.arrives))
        return Point(
            workload=name,
            concurrency=concurrency,
            rate=rate,
            num_requests=len(made.bodies),
            passes=passes,
            best=best,
            curves=drawn[best],
        )

    def _pass(self, made: Workload, concurrency: int | None, title: str) -> list[ShareResult]:
        total = len(made.bodies)

        def report(progress: LoadProgress) -> None:
            self._on_progress(title, progress, total)

        report(LoadProgress())
        return self._processes.run(self._shares(made, concurrency), report)

    def _shares(self, made: Workload, concurrency: int | None) -> list[Share]:
        """What each process does: slots are dealt out evenly, arrivals in turn."""
        config = self._config
        at_once = concurrency or len(made.bodies)
        count = min(config.processes, at_once)
        bodies = [_without(body, config.omit_fields) for body in made.bodies]
        if config.text_prompts:
            bodies = [in_words(body) for body in bodies]
        requests = [
            config.target.post(made.path, body | {"model": config.model}) for body in bodies
        ]
        arrivals = None
        if made.arrives:
            arrivals = _arrivals(len(requests), made.num_first, config.rate, self._seed)
        return [
            Share(
                target=config.target,
                requests=requests,
                is_streamed=made.is_streamed,
                timeout_s=config.timeout_s,
                slots=at_once // count + (i < at_once % count),
                arrivals=arrivals,
                first=i,
                step=count,
            )
            for i in range(count)
        ]


def _without(body: dict[str, object], fields: Sequence[str]) -> dict[str, object]:
    return {name: value for name, value in body.items() if name not in fields}


def _arrivals(count: int, num_first: int, rate: float, seed: int) -> list[float]:
    """When each request is sent, in seconds: intervals are exponential, the first come at once."""
    rng = random.Random(seed)
    later = (rng.expovariate(rate) for _ in range(count - num_first))
    return [0.0] * (num_first - 1) + list(accumulate(later, initial=0.0))


def _merit(one: Pass, arrives: bool) -> tuple[int, float]:
    """The higher the better: fewer errors, then more requests a second or an earlier token."""
    num_errors = sum(one.errors.values())
    if arrives:
        return -num_errors, -one.figures.get("first_token_p99_s", float("inf"))
    return -num_errors, one.figures.get("requests_per_s", 0.0)
