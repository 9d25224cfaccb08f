"""The self-test, `tailrace verify`: shows on the user's machine that no path loses its tail.

It drives the functions that the engine calls, chosen by the same configuration, and prints a
table. Of several ranks the others are processes of the engine, which do what rank 0 does, and then
serve with it. Replays and comparisons raise no false alarm; each count has the odds its line shows,
and the sum over a run stays below 1e-6.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

import numpy as np
import torch

from engine.config import ConfigError, EngineConfig
from engine.messages.request import Request
from engine.parallel.messages import RankTest
from engine.progress import Ticker
from engine.startup.build import build_engine, invariant_parts
from engine.startup.device import resolve_device
from engine.startup.ranks import Ranks, check_asked, of_ranks, set_threads, start_ranks
from engine.startup.verify.invariance import invariance_results
from engine.startup.verify.model_check import model_checks, model_reference, served_logits
from engine.startup.verify.sampler_checks import sampler_results
from sampling.device.ranks import LoneRank, RankExchange
from sampling.params import SamplingParams
from sampling.selftest import checks
from sampling.selftest.checks import ODDS, Result
from sampling.selftest.statistics import chi_square

MODEL_DRAWS, MODEL_TOP = 4_000, 20


def run_self_test(
    config: EngineConfig,
    *,
    quick: bool,
    with_model: bool,
    seed: int | None,
    out: TextIO,
    as_json: bool = False,
) -> int:
    """Run every check and print the table.

    Args:
        config: as for serving; its device and its promises about sampling are verified. Several
            ranks each compute and draw their shard of the logits.
        quick: make fewer draws, so as to end within two minutes on two cores.
        with_model: also compare the logits of `config.model` with its reference's, and draw through
            the whole engine.
        seed: seed of the counts; None draws a fresh one.
        as_json: print each check as a JSON object on a line, and nothing else.

    Returns:
        The exit status: 0 if all passed.
    """
    seed = secrets.randbits(48) if seed is None else seed
    device = resolve_device(config.model)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    start, results = time.monotonic(), []
    if not as_json:
        print(f"tailrace verify on {name}, torch {torch.__version__}, seed {seed}", file=out)
        print(_row(("check", "path", "statistic", "threshold", "false alarm", "result")), file=out)
    with Ticker(out, "checks") as ticker:
        for result in _results(config, device, quick, with_model, seed):
            results.append(result)
            ticker.print(json.dumps(result._asdict()) if as_json else _result_row(result))
    num_failed = sum(not result.passed for result in results)
    if not as_json:
        print(
            f"{len(results)} checks, {num_failed} failed, {time.monotonic() - start:.0f} s; odds "
            f"of any false alarm at most {sum(result.odds for result in results):.0e}",
            file=out,
        )
    return 1 if num_failed else 0


def _result_row(result: Result) -> str:
    odds = f"{result.odds:.0e}" if result.odds else "never"
    return _row((*result[:4], odds, "pass" if result.passed else "FAIL"))


def _row(cells: tuple[str, ...]) -> str:
    widths = (38, 40, 24, 14, 12, 0)
    row = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return row.rstrip()


def _results(
    config: EngineConfig, device: torch.device, quick: bool, with_model: bool, seed: int
) -> Iterator[Result]:
    if config.tensor_parallel_size > 1:
        check_asked(config, device, with_model=with_model)  # before the reference takes its minutes
        if with_model and config.model.batch_invariant:
            raise ConfigError(
                "tailrace verify --batch-invariant compares the bits of one rank; leave "
                f"--tensor-parallel-size {config.tensor_parallel_size} out"
            )
    reference = model_reference(config) if with_model else None
    text = [] if reference is None else reference.ids.tolist()
    with _ranks(config, device, RankTest(quick, seed, with_model, text)) as ranks:
        exchange = LoneRank() if ranks is None else ranks.exchange
        if with_model:
            yield from model_checks(config, reference, exchange)
        del reference
        if with_model and config.model.batch_invariant:  # what was asked for comes first
            yield from invariance_results(config, invariant_parts(config))
            gc.unfreeze()  # its engines live no longer than their checks
        yield from sampler_results(config, device, quick, seed, exchange)
        if with_model:
            yield model_frequencies(config, seed, ranks)


@contextlib.contextmanager
def _ranks(
    config: EngineConfig, device: torch.device, self_test: RankTest
) -> Iterator[Ranks | None]:
    """Start the other ranks of a configuration, if it has any.

    One that is lost ends this process, which may wait for it on the device.
    """
    if config.tensor_parallel_size == 1:
        yield None
        return
    set_threads(config)
    ranks = start_ranks(config, device, _end, self_test)
    try:
        yield ranks
    finally:
        ranks.others.close()


def _end(reason: str) -> None:
    print(f"tailrace: error: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def take_part(
    config: EngineConfig, device: torch.device, self_test: RankTest, exchange: RankExchange
) -> None:
    """Do what rank 0 does in the self-test, on another rank, up to where both build an engine."""
    set_threads(config)
    if self_test.text:
        served_logits(config, torch.tensor(self_test.text, device=device), exchange)
    for _ in sampler_results(config, device, self_test.quick, self_test.seed, exchange):
        pass
    if not self_test.with_model:
        threading.Event().wait()  # until rank 0 ends it


def model_frequencies(config: EngineConfig, seed: int, ranks: Ranks | None = None) -> Result:
    """Test the next tokens that the whole engine draws against its logprobs (chi-square).

    Args:
        ranks: the other ranks, which build their parts of the engine.
    """
    engine = build_engine(config, ranks=ranks)
    prompt = np.arange(1, 9, dtype=np.int32) % engine.info.vocab_size
    params = SamplingParams(seed=seed, logprobs=MODEL_TOP)
    engine.submit(
        b"verify",
        Request(handle=0, prompt_token_ids=prompt, params=params, n=MODEL_DRAWS, max_tokens=1),
    )
    tokens: list[int] = []
    top_ids, top_logprobs = [], []
    while engine.has_work:
        for _, output in engine.step():
            tokens += output.token_ids.tolist()
            if output.logprobs is not None and len(output.token_ids):
                top_ids.append(output.logprobs.top_ids[0])
                top_logprobs.append(output.logprobs.top_logprobs[0])
    gc.unfreeze()  # the engine lives no longer than this check
    # One cell for each of the top tokens and one for all others.
    probabilities = torch.from_numpy(np.exp(top_logprobs[0].astype(np.float64)))
    rest = (1.0 - probabilities.sum()).clamp(min=0.0)[None]
    cells = {token: cell for cell, token in enumerate(top_ids[0].tolist())}
    drawn = torch.tensor([cells.get(token, len(cells)) for token in tokens])
    counts = torch.bincount(drawn, minlength=len(cells) + 1)
    outcome = chi_square(counts, torch.cat((probabilities, rest)), ODDS)
    path = f"engine{'' if ranks is None else of_ranks(ranks.exchange)}, {config.model.model}"
    return checks.result_of("frequencies: next token", path, outcome)
