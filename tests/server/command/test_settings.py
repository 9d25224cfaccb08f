"""Flags over environment over file over defaults; what is wrong is one line that names it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.config import ConfigError
from engine.speculative_config import SpeculativeConfig
from server.command.adapter_settings import AdapterSettings
from server.command.configure import DEMO_NAME, demo_model, engine_config, server_config
from server.command.settings import ENVIRONMENT_ONLY, GROUPS, Settings, load_settings


def test_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1001\nmax-num-seqs: 33\nserved_model_name: [a, b]\nhost: h\n")
    monkeypatch.setenv("TAILRACE_PORT", "1002")
    monkeypatch.setenv("TAILRACE_HOST", "e")
    settings = load_settings({"config": str(file), "host": "f"})
    assert (settings.host, settings.port, settings.max_num_seqs) == ("f", 1002, 33)
    assert settings.served_model_name == ["a", "b"]
    assert settings.block_size == 16


def test_the_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1001\n")
    monkeypatch.setenv("TAILRACE_CONFIG", str(file))
    assert load_settings({}).port == 1001


@pytest.mark.parametrize(
    ("given", "keys"),
    [("one", ["one"]), ("one,two", ["one", "two"]), ('["one", "two"]', ["one", "two"])],
)
def test_lists_in_the_environment(
    given: str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_API_KEY", given)
    assert load_settings({}).api_key == keys


@pytest.mark.parametrize("given", [",", " ", '[""]'])
def test_a_list_in_the_environment_without_a_word(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_API_KEY", given)
    with pytest.raises(ConfigError, match="TAILRACE_API_KEY is not valid: a value is empty"):
        load_settings({})


@pytest.mark.parametrize(("given", "count"), [("4096", 4096), ("4k", 4000), ("4K", 4096)])
def test_counts(given: str, count: int) -> None:
    assert load_settings({"max_model_len": given}).max_model_len == count


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "70000"}, "--port must be at most 65535, got '70000'"),
        ({"port": "x"}, "--port must be an integer, got 'x'"),
        ({"max_logprobs": "-2"}, "--max-logprobs must be at least -1, got '-2'"),
        ({"dtype": "int3"}, "--dtype must be 'auto', 'half'"),
        ({"gpu_memory_utilization": "0"}, "--gpu-memory-utilization must be above 0"),
        ({"ssl_keyfile": "x"}, "need each other"),
        ({"ssl_keyfile": "/x", "ssl_certfile": "/y"}, "no such file: /x"),
        ({"config": "/x.yaml"}, "--config: /x.yaml: No such file"),
        ({"logprobs_mode": "raw"}, "--logprobs-mode must be"),
        ({"model": ""}, "--model must be named or left out, got ''"),
        ({"uds": ""}, "--uds must be named or left out"),
        ({"api_key": [""]}, "--api-key is not valid: a value is empty"),
        ({"allowed_hosts": ["a", ""]}, "--allowed-hosts is not valid: a value is empty"),
        ({"page": False, "page_verify": True}, "--page-verify needs the page: leave out --no-page"),
    ],
)
def test_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("port: [", "is not YAML"),
        ("- 5", "must hold settings by name"),
        ("prt: 5", "unknown setting 'prt'"),
        ("port: x", "--port must be an integer"),
    ],
)
def test_files_that_are_refused(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_settings({"config": str(file)})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_BLOCK_SIZE", "0")
    with pytest.raises(ConfigError, match="TAILRACE_BLOCK_SIZE must be at least 1, got '0'"):
        load_settings({})


def test_a_flag_is_named_where_it_hides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_BLOCK_SIZE", "16")
    with pytest.raises(ConfigError, match=r"^--block-size must be at least 1, got -1"):
        load_settings({"block_size": -1})


@pytest.mark.parametrize(("given", "means"), [(None, "auto"), ("1", "always"), ("0", "never")])
def test_flashinfer_s_sampler(
    given: str | None, means: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is not None:
        monkeypatch.setenv("TAILRACE_USE_FLASHINFER_SAMPLER", given)
    assert engine_config(load_settings({"model": "m"})).sampling.flashinfer == means


def test_flashinfer_s_sampler_is_zero_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_USE_FLASHINFER_SAMPLER", "yes")
    with pytest.raises(ConfigError, match="TAILRACE_USE_FLASHINFER_SAMPLER must be '0' or '1'"):
        load_settings({})


SPECULATION = '{"method": "ngram", "num_speculative_tokens": 3}'


def test_speculation_is_configured_by_json_or_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("speculative_config: {method: ngram, num_speculative_tokens: 3}")
    wanted = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    for flags in ({"speculative_config": SPECULATION}, {"config": str(file)}):
        assert engine_config(load_settings({"model": "x"} | flags)).speculation == wanted
    assert engine_config(load_settings({"model": "x"})).speculation is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"method": "medusa", "num_speculative_tokens": 3}', "method must be one of"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "must be from 1 to"),
        ('{"method": "ngram", "num_tokens": 3}', "unknown field 'num_tokens'"),
        (
            '{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "strict"}',
            "'strict' was removed",
        ),
    ],
)
def test_bad_speculation_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config(load_settings({"model": "x", "speculative_config": text}))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_setting_reaches_a_configuration() -> None:
    """A flag that neither configuration would notice is a flag that is silently dropped."""
    used_elsewhere = ENVIRONMENT_ONLY | {
        *("config", "host", "port", "uds", "tokenizer", "shutdown_timeout", "root_path"),
        *("uvicorn_log_level", "header_timeout", "api_server_count"),
        *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs"),
        "generation_config",
    }
    other: dict[str, Any] = {
        "allowed_hosts": ["h"],
        "chat_template": "{{ x }}",
        "decision_template": "{{ state }}",
        "rerank_template": "qwen3",
        "disable_access_log_for_endpoints": ["/health"],
        "log_level": "error",
        "log_format": "json",
        "metrics_prefix": "vllm:",
        "tool_call_parser": "hermes",
        "reasoning_parser": "qwen3",
        "reasoning_field": "reasoning",
        "unknown_fields": "ignore",
        "otlp_traces_endpoint": "http://collector:4318",
        "model": "x",
        "api_key": ["k"],
        "allowed_origins": ["*"],
        "served_model_name": ["s"],
        "revision": "r",
        "dtype": "half",
        "device": "cpu",
        "load_format": "dummy",
        "model_impl": "fused",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8_e4m3",
        "scheduling_policy": "priority",
        "logprobs_mode": "raw_logits",
        "gpu_memory_utilization": 0.5,
        "cpu_kvcache_space": 2.5,
        "max_num_batched_tokens": 999,
        "response_store": "none",
        "hf_overrides": '{"a": 1}',
        "rope_scaling": '{"factor": 2}',
        "speculative_config": SPECULATION,
        "lora_modules": ["a=b"],
        "lora_root": "folder",
        "lora_target_modules": ["q_proj"],
        "max_cpu_loras": 9,
    }
    needs: dict[str, dict[str, Any]] = {
        name: {"enable_lora": True} for name in AdapterSettings.model_fields
    }
    needs["enable_lora"] = {}

    def both(settings: Settings) -> tuple[object, object]:
        config = engine_config(settings)
        # `flags` tells of each of them, whatever it does.
        return config, structs.replace(server_config(settings, config), flags=())

    for name, field in Settings.model_fields.items():
        if name in used_elsewhere:
            continue
        value = other.get(name)
        if value is None:
            value = not field.default if field.annotation is bool else (field.default or 0) + 7
        needed: dict[str, Any] = {"model": "m", **needs.get(name, {})}
        before = both(load_settings(needed))
        assert both(load_settings({**needed, name: value})) != before, name


def test_the_demo_model_is_the_default() -> None:
    settings = load_settings({})
    config = engine_config(settings)
    assert config.model.model == str(demo_model())
    assert server_config(settings, config).model_names == (DEMO_NAME,)


def test_the_demo_model_has_a_head_of_its_own() -> None:
    text = '{"method": "eagle", "num_speculative_tokens": 4}'
    speculation = engine_config(load_settings({"speculative_config": text})).speculation
    assert speculation is not None
    assert speculation.model == str(demo_model().parent / "eagle")
    with pytest.raises(ConfigError, match="needs a model"):
        engine_config(load_settings({"model": "m", "speculative_config": text}))


def test_names() -> None:
    settings = load_settings({"model": "org/name"})
    assert server_config(settings, engine_config(settings)).model_names == ("org/name",)
    settings = load_settings({"model": "org/name", "served_model_name": ["a", "b"]})
    assert server_config(settings, engine_config(settings)).model_names == ("a", "b")


class TestGenerationConfig:
    FIELDS = '{"temperature": 0.6, "top_k": 20, "max_new_tokens": 99, "eos_token_id": 5}'

    def defaults(self, folder: Path, **flags: str) -> Any:
        settings = load_settings({"model": str(folder), **flags})
        return server_config(settings, engine_config(settings)).defaults

    def test_neutral_unless_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "generation_config.json").write_text(self.FIELDS)
        assert self.defaults(tmp_path).temperature == 1.0
        found = self.defaults(tmp_path, generation_config="auto")
        assert (found.temperature, found.top_k, found.max_tokens) == (0.6, 20, 99)

    def test_a_model_without_one(self, tmp_path: Path) -> None:
        assert self.defaults(tmp_path, generation_config="auto").temperature == 1.0

    def test_a_value_of_0_is_one(self, tmp_path: Path) -> None:
        (tmp_path / "generation_config.json").write_text('{"temperature": 0.0}')
        assert self.defaults(tmp_path, generation_config="auto").temperature == 0.0

    def test_nonsense_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "generation_config.json").write_text('{"top_p": 7.0}')
        with pytest.raises(ConfigError, match=r"generation-config.*top_p must be in"):
            self.defaults(tmp_path, generation_config="auto")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TAILRACE_MAX_NUM_SEQ", "is no setting; did you mean TAILRACE_MAX_NUM_SEQS?"),
        ("TAILRACE_SERVICE_HOST", "Kubernetes sets it"),
        ("TAILRACE_PORT_8000_TCP", "enableServiceLinks: false"),
        ("TAILRACE_ZZZZ", "TAILRACE_ZZZZ is no setting"),
    ],
)
def test_unknown_variables(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_settings({})


def test_a_typo_in_a_file_is_told_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("max_num_seq: 5")
    with pytest.raises(ConfigError, match="unknown setting 'max_num_seq'; did you mean max_num"):
        load_settings({"config": str(file)})


def test_every_setting_is_in_one_group() -> None:
    grouped = [name for group in GROUPS for name in group.model_fields]
    assert sorted(grouped) == sorted(Settings.model_fields)


def test_every_help_is_whole_sentences() -> None:
    for name, field in Settings.model_fields.items():
        words = field.description or ""
        assert re.match(r"[A-Z0-9]", words), name
        assert words.endswith("."), name
        assert len(words.split()) > 4, name


@pytest.mark.parametrize(
    ("flags", "hosts"),
    [
        ({}, ("localhost", "127.0.0.1", "[::1]")),
        ({"host": "localhost"}, ("localhost", "127.0.0.1", "[::1]")),
        ({"host": "127.0.0.7"}, ("127.0.0.7",)),
        ({"host": "0.0.0.0"}, ()),
        ({"uds": "/tmp/x"}, ()),
        ({"allowed_hosts": ["a"]}, ("a",)),
        ({"host": "0.0.0.0", "allowed_hosts": "a,b"}, ("a", "b")),
        ({"allowed_hosts": ["Chat.Example"]}, ("chat.example",)),
        ({"host": "LocalHost"}, ("localhost", "127.0.0.1", "[::1]")),
    ],
)
def test_allowed_hosts(flags: dict[str, Any], hosts: tuple[str, ...]) -> None:
    settings = load_settings({"model": "m", **flags})
    allowed = server_config(settings, engine_config(settings)).allowed_hosts
    assert set(hosts) <= set(allowed)
    assert bool(hosts) == bool(allowed)


def test_browsers_send_origins_in_lower_case() -> None:
    settings = load_settings({"model": "m", "allowed_origins": ["https://Chat.Example"]})
    config = server_config(settings, engine_config(settings))
    assert config.allowed_origins == ("https://chat.example",)


def test_traces_need_a_collector_of_http() -> None:
    plain, traced = load_settings({}), load_settings({"otlp_traces_endpoint": "http://c:4318"})
    made = [server_config(each, engine_config(each)) for each in (plain, traced)]
    assert [each.otlp_traces_endpoint for each in made] == [None, "http://c:4318/v1/traces"]
    assert [engine_config(each).report_times for each in (plain, traced)] == [False, True]
    wrong = load_settings({"otlp_traces_endpoint": "grpc://c:4317"})
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be the URL of an OTLP"):
        server_config(wrong, engine_config(wrong))


def test_traces_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "server.http.traces", raising=False)
    settings = load_settings({"otlp_traces_endpoint": "http://c:4318"})
    with pytest.raises(ConfigError, match=r"pip install 'tailrace\[otel\]'"):
        server_config(settings, engine_config(settings))


def test_the_flags_that_were_given_are_told_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_BLOCK_SIZE", "32")
    given = {"api_key": ["secret"], "page": False, "served_model_name": ["a", "b"]}
    settings = load_settings(given)
    assert server_config(settings, engine_config(settings)).flags == (
        *("--api-key ...", "--block-size 32", "--no-page", "--served-model-name a b"),
    )


def test_the_self_test_is_run_as_the_sampler_is_configured() -> None:
    def command(**flags: Any) -> tuple[str, ...]:
        settings = load_settings({"device": "cpu", **flags})
        return server_config(settings, engine_config(settings)).verify_command

    assert command() == ()
    assert command(page_verify=True)[-4:] == ("--quick", "--json", "--device", "cpu")
    assert command(page_verify=True, use_fp64_gumbel=True)[-1] == "--use-fp64-gumbel"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"model": "m", "revision": "r"}, ("m", "r")),
        ({"model": "m", "revision": "r", "tokenizer": "t"}, ("t", None)),
        ({"model": "m", "tokenizer": "t"}, ("t", None)),
        ({"model": "m", "revision": "r", "tokenizer": "m"}, ("m", None)),
    ],
)
def test_a_revision_is_the_model_s_and_of_no_other_tokenizer(
    given: dict[str, Any], wanted: tuple[str, str | None]
) -> None:
    config = engine_config(load_settings(given))
    assert config.structured is not None
    assert (config.structured.tokenizer, config.structured.revision) == wanted
    assert config.model.revision == given.get("revision")
