"""The self-test, `tailrace verify`: shows on the user's machine that no path loses its tail.

It drives the functions that the engine calls, chosen by the same configuration, and prints a
table. Replays and comparisons raise no false alarm; each count has the odds its line shows, and
the sum over a run stays below 1e-6.
"""

from __future__ import annotations

import gc
import json
import secrets
import time
from collections.abc import Iterator
from typing import TextIO

import numpy as np
import torch

from engine.config import EngineConfig
from engine.request import Request
from engine.startup.build import build_engine
from engine.startup.device import resolve_device
from engine.startup.model_check import model_checks
from engine.startup.sampler_checks import sampler_results
from engine.startup.self_test_ranks import drawing_ranks
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
        config: as for serving; its device and its promises about sampling are verified. Of several
            ranks, each draws from its shard.
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
        _print_row(("check", "path", "statistic", "threshold", "false alarm", "result"), out)
    for result in _results(config, device, quick, with_model, seed):
        results.append(result)
        _print_result(result, as_json, out)
    num_failed = sum(not result.passed for result in results)
    if not as_json:
        print(
            f"{len(results)} checks, {num_failed} failed, {time.monotonic() - start:.0f} s; odds "
            f"of any false alarm at most {sum(result.odds for result in results):.0e}",
            file=out,
        )
    return 1 if num_failed else 0


def _print_result(result: Result, as_json: bool, out: TextIO) -> None:
    if as_json:
        print(json.dumps(result._asdict()), file=out, flush=True)
        return
    odds = f"{result.odds:.0e}" if result.odds else "never"
    _print_row((*result[:4], odds, "pass" if result.passed else "FAIL"), out)


def _print_row(cells: tuple[str, ...], out: TextIO) -> None:
    widths = (38, 40, 24, 14, 12, 0)
    row = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    print(row.rstrip(), file=out, flush=True)


def _results(
    config: EngineConfig, device: torch.device, quick: bool, with_model: bool, seed: int
) -> Iterator[Result]:
    if with_model:
        yield from model_checks(config)
    with drawing_ranks(config, device, quick=quick, seed=seed) as exchange:
        yield from sampler_results(config, device, quick, seed, exchange)
    if with_model:
        yield model_frequencies(config, seed)


def model_frequencies(config: EngineConfig, seed: int) -> Result:
    """Test the next tokens that the whole engine draws against its logprobs (chi-square)."""
    engine = build_engine(config)
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
    return checks.result_of("frequencies: next token", f"engine, {config.model.model}", outcome)
