"""The proof: noise of few bits cannot draw the tail of a distribution, this sampler does.

    python -m benchmarks.gumbel_precision            # two minutes on two CPU cores
    python -m benchmarks.gumbel_precision --full     # the specification's draws, on a GPU

Each line says how many draws a rare token should have won and how many it won. Two float32
methods are widespread: argmax(p / E) with exponentials as torch makes them on CUDA, and
argmax(logit - log(-log u)) with u of 24 bits. They are counted draw by draw. The noise of named
servers (`benchmarks.noise_schemes`) is counted where the tails are many: draw by draw with --full,
else by the law of the least of their words. Ours is counted where that takes seconds (with --full:
everywhere but at the recovered token's and the draft's tiles). The rest is replayed: the noise
contract determines which draws of a fixed seed rare tokens win (`sampling.selftest.tails`), and
every one of those is drawn.

The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.noise_schemes import SCHEMES, Scheme, count
from sampling.noise import Purpose
from sampling.sampler import SamplerConfig
from sampling.selftest.paths import Draws, race_draws
from sampling.selftest.speculative_paths import PATHS
from sampling.selftest.statistics import poisson
from sampling.selftest.tails import (
    ACCEPT_GAP,
    ACCEPTED,
    CASES,
    FAR,
    MANY,
    REFUSED,
    SEED,
    TOKENS,
    TailCase,
    wins,
)

CPU_FLOAT32_DRAWS = 2_500_000
LOWEST = 2.0**-24
"""The least exponential of CUDA's `exponential_`, made of a uniform that rounds to 1."""


class Line(NamedTuple):
    """One measurement."""

    noise: str
    path: str
    case: str
    draws: int
    expected: float
    observed: int
    p_value: float
    how: str  # counted, by law or replayed


Winners = Callable[[Tensor, int], Tensor]
"""A function of logits float32 [tokens] and a number of draws; gives the tokens, int64 [draws]."""


def float32_exponentials(logits: Tensor, n: int) -> Tensor:
    """argmax(p / E), E as torch's CUDA generator makes it: -log u of a float32 u in (0, 1]."""
    if logits.is_cuda:
        noise = torch.empty((n, len(logits)), device=logits.device).exponential_()
    else:  # torch's CPU generator works in float64 inside and has its tail
        u = 1.0 - torch.rand((n, len(logits)))
        noise = torch.where(u >= 1.0 - LOWEST, LOWEST, u.log_().neg_())
    return (torch.softmax(logits, 0) / noise).argmax(1)


def float32_gumbel(logits: Tensor, n: int) -> Tensor:
    """argmax(logit + g), g = -log(-log u) of a float32 u with 24 bits."""
    noise = torch.rand((n, len(logits)), device=logits.device).log_().neg_().log_().neg_()
    return noise.add_(logits).argmax(1)


FLOAT32 = {"float32 exponentials": float32_exponentials, "float32 Gumbel": float32_gumbel}


def count_float32(noise: str, case: TailCase, draws: int, device: torch.device) -> Line:
    """Count wins draw by draw; tokens of probability 0 are left out, since they cannot win."""
    logits = case.logits()
    logits = logits[logits > -torch.inf].to(device)
    size = (1 << 30 if device.type == "cuda" else 1 << 22) // len(logits)
    observed = 0
    for first in range(0, draws, size):
        drawn = FLOAT32[noise](logits, min(size, draws - first))
        observed += int((drawn != 0).sum())
    return _line(noise, "per-token race", case.name, draws, case.probability, observed, "counted")


def count_scheme(scheme: Scheme, case: TailCase, device: torch.device, full: bool) -> Line:
    """Count wins under the noise of another server."""
    observed = count(scheme, case.gap, case.num_tails, case.draws, device, by_law=not full)
    how = "counted" if full else "by law"
    return _line(
        scheme.name, "per-token race", case.name, case.draws, case.probability, observed, how
    )


def count_ours(noise: str, path: str, draw: Draws, case: TailCase, seed: int) -> Line:
    """Count wins of the sampler's own race draw by draw, with a fresh seed."""
    size, logits, observed = 1 << 22, case.logits(), 0
    for first in range(0, case.draws, size):
        positions = torch.arange(first, min(first + size, case.draws))
        observed += int((draw(logits, positions, seed) != 0).sum())
    return _line(noise, path, case.name, case.draws, case.probability, observed, "counted")


def replay_ours(noise: str, path: str, draw: Draws, case: TailCase, purpose: Purpose) -> Line:
    """Count the draws, out of all `case.draws`, that a rare token wins by the noise contract."""
    positions, tokens = wins(case, purpose)
    observed = int((draw(case.logits(), positions, SEED) == tokens).sum())
    return _line(noise, path, case.name, case.draws, case.probability, observed, "replayed")


def replay_acceptance(noise: str, path: str, draw: Draws) -> Line:
    """Count acceptances of a draft with probability 1 / (1 + e^19) in the same way."""
    logits = torch.tensor([0.0, -ACCEPT_GAP])
    observed = int(draw(logits, torch.tensor(ACCEPTED + REFUSED), SEED).sum())
    probability = float(torch.softmax(logits.double(), 0)[1])
    return _line(noise, path, "rare acceptance", 2**32, probability, observed, "replayed")


def _line(
    noise: str, path: str, case: str, draws: int, probability: float, observed: int, how: str
) -> Line:
    expected = probability * draws
    p_value = poisson(observed, expected, 1e-8).p_value
    return Line(noise, path, case, draws, expected, observed, p_value, how)


def measure(device: torch.device, full: bool, seed: int) -> Iterator[Line]:
    """Yield every line of the table, other noise first."""
    for noise in FLOAT32:
        for case in CASES if full else (TOKENS,):
            draws = case.draws if full else CPU_FLOAT32_DRAWS
            yield count_float32(noise, case, draws, device)
    for scheme in SCHEMES:
        for case in (MANY, FAR):
            yield count_scheme(scheme, case, device, full)
    for flag in (False, True):
        noise = "ours, --use-fp64-gumbel" if flag else "ours"
        config = SamplerConfig(use_fp64_gumbel=flag)
        for case in CASES if full else (MANY,):
            yield count_ours(noise, "sampler's race", race_draws(device), case, seed)
        for path, (maker, purpose) in PATHS.items():
            draw = maker(config, device)
            if purpose is Purpose.ACCEPT:
                yield replay_acceptance(noise, path, draw)
                continue
            if full and purpose is not Purpose.TARGET:
                yield count_ours(noise, path, draw, TOKENS, seed)
            for case in CASES:
                if len(wins(case, purpose)[0]):
                    yield replay_ours(noise, path, draw, case, purpose)


def main() -> None:
    """Print a line as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the specification's draws")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    columns = "{:25} {:26} {:28} {:>13} {:>9} {:>9} {:>9}  {}"
    print(f"{name}, torch {torch.__version__}")
    print(columns.format("noise", "path", "case", "draws", "expected", "observed", "p", "how"))
    start, lines = time.monotonic(), []
    for line in measure(device, arguments.full, arguments.seed):
        lines.append(line)
        numbers = f"{line.draws:,}", f"{line.expected:.1f}", line.observed, f"{line.p_value:.1g}"
        print(columns.format(*line[:3], *numbers, line.how), flush=True)
    seconds = round(time.monotonic() - start, 1)
    rows = [line._asdict() for line in lines]
    print(json.dumps({"device": name, "full": arguments.full, "seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
