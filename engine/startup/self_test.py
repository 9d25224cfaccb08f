"""The self-test, `tailrace verify`: shows on the user's machine that no path loses its tail.

It drives the functions that the engine calls, chosen by the same configuration, and prints a
table. Replays and comparisons raise no false alarm; each count has the odds its line shows, and
the sum over a run stays below 1e-6.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TextIO

import msgspec
import numpy as np
import torch

from engine.config import EngineConfig, SamplingConfig
from engine.errors import first_line
from engine.request import Request
from engine.startup.build import build_engine
from engine.startup.device import resolve_device
from engine.startup.model_check import model_checks
from engine.startup.samplers import sampler_config
from engine.startup.self_test_ranks import drawing_ranks
from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.sampler import SamplerConfig
from sampling.selftest import checks
from sampling.selftest.checks import ODDS, Result
from sampling.selftest.paths import (
    LONE,
    kept_and_chosen,
    race_draws,
    sampler_draws,
    sampler_step,
)
from sampling.selftest.speculative_paths import (
    PATHS,
    PathMaker,
    draft_draws,
    recovered_draws,
    recovered_from_logits_draws,
    speculated_draws,
)
from sampling.selftest.statistics import chi_square
from sampling.selftest.tails import CASES, MANY
from sampling.shard import RankExchange

QUICK_DRAWS, FULL_DRAWS = 20_000, 200_000
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


def sampler_results(
    config: EngineConfig, device: torch.device, quick: bool, seed: int, exchange: RankExchange
) -> Iterator[Result]:
    """The checks of the sampler, which all ranks of an exchange run alike."""
    promised = sampler_config(SamplingConfig(use_fp64_gumbel=True))
    for where in dict.fromkeys((torch.device("cpu"), device)):
        yield from flag_coverage(promised, where, exchange)
    chosen = sampler_config(config.sampling)
    if exchange.rank == 0:  # of whole tiles' statistics, which no rank shares
        yield from _tail_counts(device, quick, seed)
    num_draws = QUICK_DRAWS if quick else FULL_DRAWS
    yield from _sampler_results(chosen, device, num_draws, seed, exchange)
    if exchange.size == 1:
        yield from flashinfer_results(chosen, device, num_draws, seed)
    yield from _speculation_results(chosen, device, num_draws, seed, exchange)


def _path(name: str, device: torch.device, exchange: RankExchange) -> str:
    ranks = f", {exchange.size} ranks" if exchange.size > 1 else ""
    return f"{name}, {device.type}{ranks}"


def flag_coverage(
    config: SamplerConfig, device: torch.device, exchange: RankExchange = LONE
) -> Iterator[Result]:
    """Whether every path on a device keeps what `--use-fp64-gumbel` promises.

    Float32 noise, at either level of the race, could give none of the tokens replayed here.
    """
    for name, (maker, purpose) in PATHS.items():
        path, draw = _path(name, device, exchange), maker(config, device, exchange=exchange)
        if purpose is Purpose.ACCEPT:
            yield checks.replay_acceptance("fp64 replay: rare acceptance", path, draw)
        else:
            yield from checks.replays(path, draw, purpose)


def _tail_counts(device: torch.device, quick: bool, seed: int) -> Iterator[Result]:
    """Count wins of rare tokens under fresh seeds.

    On a CPU the longest case, which takes 40 minutes, is left to replays.
    """
    cases = (MANY,) if quick else CASES[:2] if device.type == "cpu" else CASES
    for case in cases:
        yield checks.tail_count(f"race, {device.type}", race_draws(device), case, case.draws, seed)


def _sampler_results(
    config: SamplerConfig, device: torch.device, num_draws: int, seed: int, exchange: RankExchange
) -> Iterator[Result]:
    path = _path("sampler", device, exchange)
    draws = partial(sampler_draws, config, device, exchange=exchange)
    for shape in checks.shapes():
        yield checks.frequencies(path, draws(), shape, num_draws, seed)
    yield checks.filtered_frequencies(path, draws(checks.FILTERED), num_draws, seed)
    yield checks.tied_frequencies(path, draws(checks.TIED_K), num_draws, seed)
    masked = draws(checks.MASKED, allowed=checks.MASK_IDS)
    yield checks.masked_frequencies(path, masked, num_draws, seed)
    yield checks.kept_logprobs(path, partial(kept_and_chosen, config, device, exchange=exchange))
    yield checks.greedy_ties(path, draws(SamplingParams(temperature=0.0)))
    step = sampler_step(config, device, num_slots=checks.NUM_REQUESTS, exchange=exchange)
    yield checks.slot_invariance(path, step)


def flashinfer_results(
    config: SamplerConfig, device: torch.device, num_draws: int, seed: int
) -> Iterator[Result]:
    """Check the filters as FlashInfer applies them, where it may and can draw."""
    if device.type != "cuda" or config.use_fp64_gumbel or config.flashinfer == "never":
        return
    unseeded = msgspec.structs.replace(checks.FILTERED, seed=None)
    rows_by_path: Counter[str] = Counter()
    insisting = dataclasses.replace(config, flashinfer="always")
    draw = sampler_draws(insisting, device, unseeded, rows_by_path)
    try:
        result = checks.filtered_frequencies("flashinfer, cuda", draw, num_draws, seed)
    except (ImportError, RuntimeError, ValueError) as error:  # not installed, or not for this GPU
        reason = first_line(error)
        yield Result("frequencies: FlashInfer", "flashinfer, cuda", reason, "none", 0.0, True)
        return
    if rows_by_path["flashinfer"] != num_draws:
        words = f"{rows_by_path['flashinfer']} of {num_draws} drawn by it"
        result = result._replace(statistic=words, threshold="all", passed=False)
    yield result


def _speculation_results(
    config: SamplerConfig, device: torch.device, num_draws: int, seed: int, exchange: RankExchange
) -> Iterator[Result]:
    makers: dict[str, PathMaker] = {
        "draft": draft_draws,
        "recovered, one-hot draft": recovered_draws,
        "recovered, draft logits": recovered_from_logits_draws,
    }
    for name, maker in makers.items():
        draw, path = maker(config, device, exchange=exchange), _path(name, device, exchange)
        yield checks.frequencies(path, draw, checks.peaked(), num_draws, seed)
    for one_hot, name in ((True, "one-hot draft"), (False, "draft logits")):
        path = _path(name, device, exchange)
        draws = partial(speculated_draws, config, device, one_hot=one_hot, exchange=exchange)
        yield checks.speculated_frequencies(path, draws(), num_draws, seed)
        masked = draws(allowed=checks.FEW_MASK_IDS)
        yield checks.constrained_frequencies(path, masked, num_draws, seed)


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
