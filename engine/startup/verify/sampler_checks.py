"""The checks of the sampler in `tailrace verify`: every path; tails, filters, masks and drafts.

All ranks of an exchange run them alike, each over its shard of the logits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import partial

import msgspec
import torch

from engine.config import EngineConfig, SamplingConfig
from engine.errors import first_line
from engine.startup.ranks import of_ranks
from engine.startup.samplers import sampler_config
from sampling.device.ranks import RankExchange
from sampling.noise import Purpose
from sampling.params import SamplingParams
from sampling.sampler import SamplerConfig
from sampling.selftest import checks
from sampling.selftest.checks import Result
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
from sampling.selftest.tails import CASES, MANY

QUICK_DRAWS, FULL_DRAWS = 20_000, 200_000


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
    return f"{name}, {device.type}{of_ranks(exchange)}"


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
