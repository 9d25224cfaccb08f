"""`tailrace deploy` up to the point where Ray would start."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config import ConfigError
from server import cli
from server.command import deploy as deploy_command
from server.command.fleet_settings import (
    FleetConfig,
    FleetOptions,
    check_gpus,
    config_of_args,
    fleet_config,
)
from server.command.settings import load_settings

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command, which must end with one line; returns the line."""

    def run(*arguments: str) -> str:
        assert cli.main(["deploy", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--replicas", "0"), "--replicas must be 1 to 1000, got 0"),
        (("--ingresses", "1001"), "--ingresses must be 1 to 1000, got 1001"),
        (
            ("--replicas", "4", "--max-replicas", "2"),
            "--max-replicas must be at least --replicas (4), got 2",
        ),
        (("--upscale-delay", "-1"), "--upscale-delay must be at least 0, got -1.0"),
        (("--downscale-delay", "nan"), "--downscale-delay must be at least 0, got nan"),
        (
            ("--uds", "/tmp/socket"),
            "--uds means nothing for a fleet, which listens by Ray Serve's proxy: leave it out, or "
            "use `tailrace serve`",
        ),
        (("--api-server-count", "2"), "--api-server-count means nothing for a fleet"),
        (("--max-num-seqs", "0"), "--max-num-seqs must be at least 1"),
        (("./nowhere",), "MODEL ./nowhere: there is no such folder"),
    ],
)
def test_mistakes_are_told_in_one_line(
    refused: Refused, flags: tuple[str, ...], words: str
) -> None:
    assert f"tailrace: error: {words}" in refused(*flags)


def test_without_ray_the_extra_is_named(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_command, "find_spec", lambda name: None)
    words = "`tailrace deploy` needs Ray Serve: pip install 'tailrace[ray]'"
    assert refused("--port", "0") == f"tailrace: error: {words}"


def test_a_taken_port_is_told_before_ray_starts(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_command, "_import_fleet", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port} on 127.0.0.1: Address already in use" in refused("--port", port)


@pytest.mark.parametrize(
    ("messages", "reported"),
    [
        (["", "Traceback:\n  f()\nengine.errors.ConfigError: too small: lower it\n\nbye"],
         "too small: lower it"),
        (["healthy"], "it failed"),
    ],
)  # fmt: skip
def test_the_cause_of_a_failed_start_is_told(messages: list[str], reported: str) -> None:
    deployments = {str(i): SimpleNamespace(message=each) for i, each in enumerate(messages)}
    status = SimpleNamespace(applications={"name": SimpleNamespace(deployments=deployments)})
    fleet: Any = SimpleNamespace(NAME="name", serve=SimpleNamespace(status=lambda: status))
    assert deploy_command._reason(fleet, RuntimeError("it failed")) == reported


def config(**given: object) -> FleetConfig:
    return fleet_config(load_settings(dict(given)), FleetOptions())


def test_what_a_fleet_changes_of_a_server() -> None:
    made = config(seed=7, enable_request_id_headers=True, device="cpu")
    assert (made.seed, made.engine.sampling.seed) == (7, None)
    assert not made.http.request_id_headers
    assert made.http.created > 0
    assert made.gpus_per_replica == 0
    assert config().gpus_per_replica == 1
    assert config(tensor_parallel_size=2).gpus_per_replica == 2
    assert made.tokenizer == made.engine.model.model


def test_options_are_flags() -> None:
    given = {"replicas": 2, "max_replicas": 3, "downscale_delay_s": 1.5, "port": 1}
    made = deploy_command.fleet_options(given)
    assert made == FleetOptions(replicas=2, max_replicas=3, downscale_delay_s=1.5)
    assert given == {"port": 1}


def test_a_file_s_arguments_are_settings_and_options() -> None:
    made = config_of_args({"max_num_seqs": 8, "replicas": "2", "restart": [1], "device": "cpu"})
    assert (made.engine.scheduler.max_rows, made.options.replicas) == (8, 2)


def test_a_file_s_fleet_answers_to_any_host_but_where_some_are_named() -> None:
    """Ray Serve listens where the file says; `host` keeps its default, this machine alone."""
    assert config().http.allowed_hosts != ()
    assert config_of_args({}).http.allowed_hosts == ()
    assert config_of_args({"allowed_hosts": ["fleet"]}).http.allowed_hosts == ("fleet",)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"port": 1}, "args of the fleet: port belongs into http_options"),
        ({"host": "0.0.0.0"}, "args of the fleet: host belongs into http_options"),
        ({"replicas": 0}, r"args of the fleet: .*`\$.replicas`"),
        ({"max_wating_requests": 1}, "is no setting; did you mean max_waiting_requests?"),
        ({"ingreses": 1}, "is no setting; did you mean ingresses?"),
    ],
)
def test_mistakes_in_a_file_s_arguments(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of_args(args)


@pytest.mark.parametrize(
    ("given", "options", "enough"),
    [
        ({}, {"replicas": 2}, (0, 2, 3)),  # without GPUs the CPU will do
        ({"device": "cuda"}, {"replicas": 2}, (2,)),
        ({"tensor_parallel_size": 2}, {"replicas": 1, "max_replicas": 3}, (0, 6)),
        ({"device": "cpu"}, {"replicas": 4}, (0, 1)),
    ],
)
def test_more_gpus_than_there_are_is_told(
    given: dict[str, Any], options: dict[str, int], enough: tuple[int, ...]
) -> None:
    made = fleet_config(load_settings(given), FleetOptions(**options))
    for num_gpus in range(8):
        if num_gpus in enough or num_gpus > max(enough):
            check_gpus(made, num_gpus)
        else:
            with pytest.raises(ConfigError, match=f"GPUs each need .*, and there are {num_gpus}:"):
                check_gpus(made, num_gpus)


def test_ray_gets_a_token_of_its_own_unless_it_is_told_otherwise() -> None:
    first, second = deploy_command.ray_variables({}), deploy_command.ray_variables({})
    assert first["RAY_AUTH_MODE"] == "token"
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    reported = {"RAY_AUTH_TOKEN_PATH": "/run/token", "RAY_USAGE_STATS_ENABLED": "1"}
    assert deploy_command.ray_variables(reported) == {}
