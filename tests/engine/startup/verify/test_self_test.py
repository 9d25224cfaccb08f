"""`tailrace verify` as a program, and the float64 promise from the command line to every path.

Replays are exact; the counts' seed is fixed here, so the outcome is fixed too.
"""

import io
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from msgspec import structs
from torch import Tensor

import engine.startup.build
import engine.startup.samplers
import engine.startup.verify.self_test
from engine.config import EngineConfig, ModelConfig, SamplingConfig
from engine.errors import ModelError
from engine.parallel.messages import RankTest
from engine.startup.ranks import Ranks
from engine.startup.samplers import sampler_config
from engine.startup.verify import sampler_checks
from engine.startup.verify.sampler_checks import flag_coverage, sampler_results
from engine.startup.verify.self_test import run_self_test
from sampling import noise, race
from sampling.device.ranks import LoneRank, RankExchange
from sampling.noise import Purpose
from sampling.sampler import SamplerConfig
from sampling.selftest.checks import Result
from sampling.selftest.speculative_paths import PATHS
from sampling.selftest.tails import MANY
from sampling.speculative import draws
from server import cli
from server.command.configure import engine_config
from server.command.settings import load_settings
from tests.sampling.ranks import on_ranks

CPU = torch.device("cpu")


def config(**sampling: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model="unused", device="cpu"), sampling=SamplingConfig(**sampling)
    )


def settings_of(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `tailrace serve` is given on a command line."""
    seen: dict[str, Any] = {}
    words, add, _ = cli.COMMANDS["serve"]

    def run(given: dict[str, Any]) -> int:
        seen.update(given)
        return 0

    monkeypatch.setitem(cli.COMMANDS, "serve", (words, add, run))
    assert cli.main(["serve", *arguments]) == 0
    return seen


def test_the_flag_reaches_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings_of(["--use-fp64-gumbel"], monkeypatch)
    assert engine_config(load_settings(given)).sampling.use_fp64_gumbel
    assert not engine_config(load_settings({})).sampling.use_fp64_gumbel
    monkeypatch.setenv("TAILRACE_USE_FP64_GUMBEL", "1")
    assert engine_config(load_settings({})).sampling.use_fp64_gumbel


def test_the_configuration_reaches_the_sampler_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class BuiltError(Exception):
        pass

    def build(config: SamplerConfig, rows: object) -> None:
        raise BuiltError(config)

    monkeypatch.setattr(engine.startup.samplers, "Sampler", build)
    for flag in (True, False):
        served = engine_config(load_settings({"use_fp64_gumbel": flag}))
        with pytest.raises(BuiltError) as built:
            engine.startup.build.build_engine(served)
        assert built.value.args[0] == sampler_config(served.sampling)
        assert built.value.args[0].use_fp64_gumbel is flag


def paths_failing() -> set[str]:
    results = list(flag_coverage(sampler_config(SamplingConfig(use_fp64_gumbel=True)), CPU))
    assert {result.path for result in results} == {f"{path}, cpu" for path in PATHS}
    return {result.path.removesuffix(", cpu") for result in results if not result.passed}


def test_every_path_honours_the_flag() -> None:
    assert paths_failing() == set()


def degraded(draw: Callable[..., Tensor], broken: Purpose) -> Callable[..., Tensor]:
    """A generator of noise that has float32's resolution for one purpose."""

    def drawn(key: object, first: object, count: int, stream_id: int) -> Tensor:
        values = draw(key, first, count, stream_id)
        if stream_id >> 1 & 3 != broken:
            return values
        return ((values * 2.0**24).floor() + 1.0) * 2.0**-24

    return drawn


@pytest.mark.parametrize(
    ("broken", "paths"),
    [
        (Purpose.TARGET, {"sampler"}),
        (Purpose.DRAFT, {"draft"}),
        (Purpose.ACCEPT, {"accept"}),
        (Purpose.RESIDUAL, {"recovered, one-hot draft", "recovered, draft logits"}),
    ],
)
def test_a_path_that_stops_honouring_it_is_found(
    broken: Purpose, paths: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "exponentials", degraded(noise.exponentials, broken))
    monkeypatch.setattr(draws, "exponentials", degraded(noise.exponentials, broken))
    monkeypatch.setattr(draws, "uniforms", degraded(noise.uniforms, broken))
    assert paths_failing() == paths


def test_the_program_prints_a_table_and_fails_when_a_check_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler_checks, "QUICK_DRAWS", 1_500)
    monkeypatch.setattr(sampler_checks, "MANY", MANY._replace(draws=2_000))
    table = io.StringIO()
    assert run_self_test(config(), quick=True, with_model=False, seed=1, out=table) == 0
    lines = table.getvalue().splitlines()
    assert lines[0].startswith("tailrace verify on CPU")
    assert lines[1].split()[:3] == ["check", "path", "statistic"]
    assert all(line.endswith("pass") for line in lines[2:-1])
    odds = float(lines[-1].rsplit(" ", 1)[1])
    assert 0.0 < odds <= 1e-6

    monkeypatch.setattr(race, "exponentials", degraded(noise.exponentials, Purpose.TARGET))
    table = io.StringIO()
    assert run_self_test(config(), quick=True, with_model=False, seed=1, out=table) == 1
    assert "FAIL" in table.getvalue()


def test_ranks_draw_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each from its shard: every count of the table is the same. Long replays are left out."""
    monkeypatch.setattr(sampler_checks, "PATHS", {"accept": PATHS["accept"]})
    monkeypatch.setattr(sampler_checks, "QUICK_DRAWS", 500)
    monkeypatch.setattr(sampler_checks, "MANY", MANY._replace(draws=2_000))

    def table(exchange: RankExchange) -> list[Result]:
        return list(sampler_results(config(), CPU, True, 7, exchange))

    alone, together = table(LoneRank()), on_ranks(2, table)[0]
    assert [result.statistic for result in together] == [result.statistic for result in alone]
    assert all(result.passed for result in together)
    paths = {result.path for result in together}
    names = {*PATHS, "one-hot draft", "draft logits"}
    assert paths == {f"{name}, cpu, 2 ranks" for name in names} | {"race, cpu"}


@pytest.mark.slow
@pytest.mark.parametrize("with_model", [False, True])
def test_processes_of_two_ranks_pass(with_model: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_checks, "MANY", MANY._replace(draws=2_000))
    alone = demo_config() if with_model else config()
    both, table = structs.replace(alone, tensor_parallel_size=2), io.StringIO()
    assert run_self_test(both, quick=True, with_model=with_model, seed=1, out=table) == 0
    paths = ["transformers in float32, 2 ranks", "engine, 2 ranks"] if with_model else []
    for path in [*paths, "sampler, cpu, 2 ranks"]:
        assert path in table.getvalue()


def test_ranks_are_refused_before_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: EngineConfig) -> None:
        raise AssertionError("the reference runs")

    monkeypatch.setattr(engine.startup.verify.self_test, "model_reference", run)
    both = structs.replace(demo_config(), tensor_parallel_size=2)
    refused = structs.replace(both, model=structs.replace(both.model, model_impl="transformers"))
    for asked, error, message in (
        (both, AssertionError, "the reference runs"),
        (refused, ModelError, "^--tensor-parallel-size 2: only the fused decoder is divided"),
    ):
        with pytest.raises(error, match=message):
            run_self_test(asked, quick=True, with_model=True, seed=1, out=io.StringIO())


def test_checks_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        Result("a", "path", "chi2(3) = 1.5", "9.0", 1e-8, True),
        Result("b", "path", "0 of 3", "all", 0.0, False),
    ]
    monkeypatch.setattr(engine.startup.verify.self_test, "_results", lambda *_: iter(results))
    out = io.StringIO()
    asked = {"as_json": True, "quick": True, "with_model": False}
    assert run_self_test(config(), out=out, seed=1, **asked) == 1
    assert [Result(**json.loads(line)) for line in out.getvalue().splitlines()] == results


def demo_config() -> EngineConfig:
    return engine_config(load_settings({"device": "cpu"}))


def test_a_model_is_drawn_through_the_whole_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.startup.verify.self_test, "MODEL_DRAWS", 600)
    assert engine.startup.verify.self_test.model_frequencies(demo_config(), seed=3).passed


def test_one_start_of_ranks_serves_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs meet only once in a process."""
    module = engine.startup.verify.self_test
    calls: list[tuple[Any, ...]] = []
    passed = Result("a", "path", "1", "1", 0.0, True)

    class Others:
        def close(self) -> None:
            calls.append(("close",))

    def noting(name: str, *, one: bool = False) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            calls.append((name, given[-1]))
            return passed if one else iter([passed])

        return run

    exchange: Any = object()
    ranks = Ranks(cast("Any", Others()), exchange)

    def start(config: EngineConfig, device: torch.device, lost: object, test: RankTest) -> Ranks:
        calls.append(("start", test))
        return ranks

    monkeypatch.setattr(module, "start_ranks", start)
    monkeypatch.setattr(module, "set_threads", lambda config: None)
    monkeypatch.setattr(module, "model_reference", lambda config: None)
    monkeypatch.setattr(module, "model_checks", noting("logits"))
    monkeypatch.setattr(module, "sampler_results", noting("sampler"))
    monkeypatch.setattr(module, "model_frequencies", noting("engine", one=True))
    both = structs.replace(demo_config(), tensor_parallel_size=2)
    assert run_self_test(both, quick=True, with_model=True, seed=7, out=io.StringIO()) == 0
    assert calls == [
        ("start", RankTest(quick=True, seed=7, with_model=True, text=[])),
        ("logits", exchange),
        ("sampler", exchange),
        ("engine", ranks),
        ("close",),
    ]


def test_a_model_s_logits_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Result("logits: mean KL", "transformers in float32", "1 nats", "1e-06", 0.0, False)
    monkeypatch.setattr(engine.startup.verify.self_test, "model_reference", lambda config: None)
    monkeypatch.setattr(engine.startup.verify.self_test, "model_checks", lambda *_: iter([failed]))
    results = engine.startup.verify.self_test._results(config(), CPU, True, True, 1)
    assert next(results) == failed


@pytest.mark.gpu
def test_every_path_honours_the_flag_on_the_gpu() -> None:
    promised = sampler_config(SamplingConfig(use_fp64_gumbel=True))
    results = list(flag_coverage(promised, torch.device("cuda")))
    assert [result for result in results if not result.passed] == []
