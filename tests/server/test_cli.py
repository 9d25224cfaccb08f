"""The command line: a flag for every setting, one line for every mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo import MODEL_FOLDER
from engine.config import EngineConfig
from engine.startup.verify import self_test
from server import cli
from server.command.settings import ENVIRONMENT_ONLY, Settings, flag_of
from server.command.vllm_flags import ACCEPTED


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `tailrace serve` up to the point where serving would begin."""
    seen: list[Settings] = []

    def serve(settings: Settings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr("server.command.serve.serve", serve)

    def run(*arguments: str) -> Settings:
        assert cli.main(["serve", *arguments]) == 0
        return seen[-1]

    return run


def test_flags(settings_of: Any) -> None:
    settings = settings_of(
        *("MODEL", "--port", "1", "--api-key", "a", "b", "--api-key", "c"),
        *("--no-enable-prefix-caching", "--use-fp64-gumbel", "--max-num-seqs", "2k"),
    )
    assert (settings.model, settings.port, settings.api_key) == ("MODEL", 1, ["a", "b", "c"])
    assert not settings.enable_prefix_caching
    assert settings.use_fp64_gumbel
    assert settings.max_num_seqs == 2000


def test_the_model_may_be_a_flag(settings_of: Any) -> None:
    assert settings_of("--model", "M").model == "M"
    assert settings_of("P", "--model", "P").model == "P"
    assert settings_of().model is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["serve", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["serve", "--por", "5"], "unrecognized arguments: --por; did you mean --port?"),
        (["serve", "--max-num-seq=5"], "--max-num-seq=5; did you mean --max-num-seqs?"),
        (["serve", "-dp", "2"], "-dp must be 1 here, got '2'; several engines are started by"),
        (["serve", "--swap-spac", "2"], "unrecognized arguments: --swap-spac\n"),
        (["serve", "-pp", "2"], "-pp must be 1 here, got '2'"),
        (["serve", "-tp", "3"], "--tensor-parallel-size must be 1, 2, 4 or 8, got 3"),
        (["serve", "--kv-cache-dtype", "int8"], "--kv-cache-dtype"),
        (["serve", "--max-loras", "4"], "--max-loras needs --enable-lora"),
        (["serve", "--port"], "expected one argument"),
        (["serve", "--port", "x"], "--port must be an integer, got 'x'"),
        (["serve", "A", "--model", "B"], "MODEL and --model differ"),
    ],
)
def test_mistakes(arguments: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    out, err = capfd.readouterr()
    assert status == 2
    assert out == ""
    assert line in err
    assert err.count("\n") == 1


def test_help_names_every_setting_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    words = capsys.readouterr().out.replace("\n", " ").replace(" ", "")
    for name in set(Settings.model_fields) - ENVIRONMENT_ONLY:
        assert f"--{name.replace('_', '-')}" in words
        assert f"[TAILRACE_{name.upper()}]" in words


def test_help_comes_in_groups_with_choices_and_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    out = capsys.readouterr().out
    titles = [line[:-1] for line in out.splitlines() if line[:1].isalpha() and line.endswith(":")]
    assert titles[2:] == [
        *("model", "KV cache", "scheduling", "sampling and log-probabilities"),
        *("speculative decoding", "adapters", "HTTP", "tools and reasoning"),
        *("stored responses", "limits", "security", "rollouts"),
        *("logging", "traces", "settings"),
    ]
    words = " ".join(out.split())
    assert "One of: auto, safetensors, dummy. Default: auto. [TAILRACE_LOAD_FORMAT]" in words
    assert "Default: 8000. [TAILRACE_PORT]" in words
    assert "Default: on. [TAILRACE_ENABLE_PREFIX_CACHING]" in words
    assert "Default: 1. [TAILRACE_STREAM_INTERVAL]" in words
    assert "Default: 0. [TAILRACE_SSL_CERT_REQS]" in words
    assert "--pipeline-parallel-size" not in words


def test_flags_of_vllm_that_change_nothing_are_noted(
    settings_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(
        *("MODEL", "--pipeline-parallel-size", "1", "--swap-space=4", "--disable-log-requests"),
        *("--tokenizer-mode", "auto", "--port", "1"),
    )
    assert (settings.model, settings.port) == ("MODEL", 1)
    assert capsys.readouterr().err.splitlines() == [
        "tailrace: note: --pipeline-parallel-size 1 changes nothing here",
        "tailrace: note: --swap-space 4 changes nothing here",
        "tailrace: note: --disable-log-requests changes nothing here",
        "tailrace: note: --tokenizer-mode auto changes nothing here",
    ]


def test_pasted_commands(settings_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_of(
        *("MODEL", "-O3", "--guided-decoding-backend", "xgrammar", "--limit_mm_per_prompt", "{}"),
        *("--structured-outputs-config.disable_fallback=true", "--max_num_seqs=7"),
        *("--enable_prefix_caching", "--compilation-config", '{"level": 3}', "--served-model-name"),
        "a_b",
    )
    assert (settings.max_num_seqs, settings.served_model_name) == (7, ["a_b"])
    assert capsys.readouterr().err.count("changes nothing here") == 5


def test_fields_of_vllm_s_configs(settings_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_of(
        *("MODEL", "-cc.mode=3", "-cc", "{}", "-O.mode", "3", "--compilation-config.mode", "3"),
        *("--limit-mm-per-prompt.image", "2", "--structured-outputs-config.reasoning_parser=none"),
        *("--structured_outputs_config", '{"backend": "auto", "disable_fallback": false}'),
    )
    assert settings.reasoning_parser == "none"
    assert capsys.readouterr().err.count("changes nothing here") == 7
    flag = "--structured-outputs-config"
    for value, words in (
        ('{"disable_any_whitespace": true}', "must be false or False here, got 'True'"),
        ("{", "must be JSON"),
        ("3", "must be a JSON object"),
    ):
        assert cli.main(["serve", "MODEL", flag, value]) == 2
        assert words in capsys.readouterr().err


def test_a_checkpoints_own_quantization(
    settings_of: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = '{"quantization_config": {"quant_method": "gptq"}}'
    (tmp_path / "config.json").write_text(config)
    folder = str(tmp_path)
    assert settings_of(folder, "--quantization", "gptq_marlin").quantization == "none"
    assert "weights are read as they were made" in capsys.readouterr().err
    assert cli.main(["serve", folder, "--quantization", "awq"]) == 2
    assert "--quantization awq: the model's config.json says gptq" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["serve", "--model", folder, "--quantization", "awq"]) == 2
    assert settings_of("owner/name", "--quantization", "awq").quantization == "none"


def test_no_flag_of_vllm_hides_a_setting() -> None:
    assert not {flag_of(name) for name in Settings.model_fields} & set(ACCEPTED)


def test_the_command_needs_no_torch_to_say_what_is_wrong() -> None:
    code = "import sys, server.cli, server.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("flush", [False, True])
def test_a_reader_that_has_gone_is_no_error(flush: bool) -> None:
    """As `head` is that has its lines."""
    code = f"""import os, sys; from server import cli
cli.COMMANDS["verify"] = "", lambda parser: None, lambda given: print(1, flush={flush}) or 0
reader, writer = os.pipe(); os.dup2(writer, 1); os.close(reader); os.close(writer)
sys.argv = ["tailrace", "verify"]; cli.run()"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "with_model"),
    [([], False), (["--batch-invariant"], True), (["--model", str(MODEL_FOLDER)], True)],
)
def test_a_promise_about_a_model_is_verified_on_the_demo_where_none_is_named(
    arguments: list[str], with_model: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def run(config: EngineConfig, *, with_model: bool, **given: Any) -> int:
        asked.append(with_model)
        return 0

    monkeypatch.setattr(self_test, "run_self_test", run)
    assert cli.main(["verify", "--device", "cpu", *arguments]) == 0
    assert asked == [with_model]
