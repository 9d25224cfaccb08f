"""The frozen configurations of engine and server, made of the settings."""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import orjson
from jinja2 import TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from engine.config import (
    CacheConfig,
    ConfigError,
    Dtype,
    EngineConfig,
    FlashInferSampler,
    ModelConfig,
    SamplingConfig,
    SchedulerConfig,
    StructuredConfig,
)
from engine.models.weights.overrides import ROPE, refused_rope
from engine.speculative_config import SpeculativeConfig, parse_speculative_config
from sampling.params import ParameterError, SamplingParams
from server.command.adapter_settings import adapters_config
from server.command.logs import log_level
from server.command.settings import Settings, flag_of
from server.config import ResponseStoreConfig, SamplingDefaults, ServerConfig
from server.http.origins import LOCAL_HOSTS
from server.response_store.database import check_store
from server.response_store.records import StoreError
from server.scoring.rerankers import FORMATS
from server.scoring.sentence_modules import pooling_of

DEMO_NAME = "tailrace-demo"

_DTYPES: dict[str, Dtype] = {
    "auto": "auto",
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
_FLASHINFER: dict[str | None, FlashInferSampler] = {None: "auto", "1": "always", "0": "never"}


def engine_config(settings: Settings) -> EngineConfig:
    """The configuration of the engine process; raises `ConfigError`."""
    return EngineConfig(
        model=ModelConfig(
            model=settings.model or str(demo_model()),
            revision=settings.revision,
            dtype=_DTYPES[settings.dtype],
            device=settings.device,
            load_format=settings.load_format,
            model_impl=settings.model_impl,
            quantization=None if settings.quantization == "none" else settings.quantization,
            max_model_len=settings.max_model_len,
            trust_remote_code=settings.trust_remote_code,
            hf_overrides=_hf_overrides(settings),
            batch_invariant=settings.batch_invariant,
            returns_routes=settings.enable_return_routed_experts,
        ),
        cache=CacheConfig(
            block_size=settings.block_size,
            num_blocks=settings.num_gpu_blocks_override,
            memory_utilization=settings.gpu_memory_utilization,
            cpu_bytes=int(settings.cpu_kvcache_space * 2**30),
            prefix_caching=settings.enable_prefix_caching,
            dtype="auto" if settings.kv_cache_dtype == "auto" else "fp8",
        ),
        scheduler=SchedulerConfig(
            max_rows=settings.max_num_seqs,
            max_step_tokens=settings.max_num_batched_tokens,
            chunked_prefill=settings.enable_chunked_prefill,
            max_gap_s=None if settings.max_gap_ms is None else settings.max_gap_ms / 1e3,
            policy=settings.scheduling_policy,
        ),
        sampling=SamplingConfig(
            use_fp64_gumbel=settings.use_fp64_gumbel,
            flashinfer=_FLASHINFER[settings.use_flashinfer_sampler],
            max_logprobs=settings.max_logprobs,
            logprobs_mode=settings.logprobs_mode,
            seed=settings.seed,
        ),
        speculation=_speculation(settings),
        structured=_structured(settings),
        adapters=adapters_config(settings),
        tensor_parallel_size=settings.tensor_parallel_size,
        cuda_graphs=not settings.enforce_eager,
        wait_for_kernels=settings.wait_for_kernels,
        num_threads=settings.num_threads,
        step_timeout_s=settings.step_timeout,
        sleep_mode=settings.enable_sleep_mode,
        report_times=settings.otlp_traces_endpoint is not None,
        log_level=log_level(settings),
        log_format=settings.log_format,
    )


def server_config(settings: Settings, config: EngineConfig) -> ServerConfig:
    """The configuration of the HTTP side; raises `ConfigError`."""
    model = config.model.model
    own_name = model if settings.model else DEMO_NAME
    _check_names(tuple(settings.served_model_name) or (own_name,), settings, config)
    return ServerConfig(
        model_names=tuple(settings.served_model_name) or (own_name,),
        any_model_name=settings.allow_any_model_name,
        model_root=model,
        api_keys=tuple(settings.api_key),
        open_metrics=settings.open_metrics,
        allowed_origins=tuple(origin.lower() for origin in settings.allowed_origins),
        allowed_hosts=_allowed_hosts(settings),
        max_body_bytes=settings.max_body_bytes,
        max_waiting_requests=settings.max_waiting_requests,
        max_prompts=settings.max_completion_prompts,
        max_choices=settings.max_n_sequences,
        max_choices_per_request=settings.max_choices_per_request,
        max_reply_values=settings.max_reply_values,
        max_logprobs=settings.max_logprobs,
        logprobs_mode=settings.logprobs_mode,
        priority_scheduling=settings.scheduling_policy == "priority",
        stream_interval=settings.stream_interval,
        request_id_headers=settings.enable_request_id_headers,
        accepts_unknown_fields=settings.unknown_fields == "ignore",
        prompt_tokens_details=settings.enable_prompt_tokens_details,
        force_include_usage=settings.enable_force_include_usage,
        tokens_as_token_ids=settings.return_tokens_as_token_ids,
        chat_template=_template_text("--chat-template", settings.chat_template),
        decision_template=_jinja("--decision-template", settings.decision_template),
        rerank_template=_jinja("--rerank-template", settings.rerank_template, FORMATS),
        pooling=pooling_of(model),
        max_scoring_tokens=settings.max_scoring_tokens,
        trust_request_chat_template=settings.trust_request_chat_template,
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        reasoning_field=settings.reasoning_field,
        lenient_schemas=settings.lenient_schemas,
        exclude_tools_when_none=settings.exclude_tools_when_tool_choice_none,
        metrics_prefix=settings.metrics_prefix,
        otlp_traces_endpoint=_traces_endpoint(settings.otlp_traces_endpoint),
        access_log=not settings.disable_uvicorn_access_log,
        access_log_hidden=tuple(settings.disable_access_log_for_endpoints),
        log_requests=settings.enable_log_requests,
        max_log_len=settings.max_log_len,
        defaults=_sampling_defaults(settings, model),
        weight_updates=settings.enable_weight_updates,
        sleep_mode=settings.enable_sleep_mode,
        enable_lora=settings.enable_lora,
        lora_root=settings.lora_root,
        page=settings.page,
        verify_command=_verify_command(settings, config) if settings.page_verify else (),
        flags=_flags(settings),
        response_store=_response_store(settings),
    )


def _response_store(settings: Settings) -> ResponseStoreConfig | None:
    """Where responses are kept; raises `ConfigError` for a file that cannot be used."""
    given = settings.response_store
    if given == "none":
        return None
    config = ResponseStoreConfig(
        path="" if given is None else str(Path(given).expanduser().absolute()),
        max_responses=settings.response_store_max_responses,
        max_bytes=settings.response_store_max_bytes,
        max_age_s=settings.response_store_max_days * 86400.0,
    )
    try:
        check_store(config)
    except StoreError as error:
        raise ConfigError(f"--response-store {given}: {error}") from None
    return config


def _check_names(names: tuple[str, ...], settings: Settings, config: EngineConfig) -> None:
    """Refuse adapters whose names are those of the model."""
    if config.adapters is None:
        return
    if settings.allow_any_model_name:
        raise ConfigError(
            "--allow-any-model-name would take an adapter that is not there for the model: leave "
            "it out, or --enable-lora"
        )
    for name, _ in config.adapters.modules:
        if name in names:
            raise ConfigError(f"--lora-modules {name}: that is a name of the model itself")


def _verify_command(settings: Settings, config: EngineConfig) -> tuple[str, ...]:
    """The self-test of the sampler as this server has configured it, each check a line of JSON."""
    command = [sys.executable, "-m", "server.cli", "verify", "--quick", "--json"]
    command += ["--device", settings.device]
    if config.sampling.use_fp64_gumbel:
        command.append("--use-fp64-gumbel")
    return tuple(command)


def _flags(settings: Settings) -> tuple[str, ...]:
    """The settings that were given anywhere, as flags; of keys it is only said that there are."""
    lines = []
    for name in sorted(settings.model_fields_set):
        value = getattr(settings, name)
        if isinstance(value, bool):
            lines.append(flag_of(name) if value else flag_of(f"no_{name}"))
        elif name == "api_key":
            lines.append(f"{flag_of(name)} ...")
        elif isinstance(value, list):
            lines.append(" ".join([flag_of(name), *value]))
        else:
            lines.append(f"{flag_of(name)} {value}")
    return tuple(lines)


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """The names that were given, or those of this machine for a server that only it can reach.

    A page elsewhere could otherwise reach such a server under a name of its own that it lets point
    here. Everywhere else the names are not known, and a Unix socket is out of any page's reach.
    All are in lower case, as they are compared.
    """
    if settings.allowed_hosts:
        return tuple(host.lower() for host in settings.allowed_hosts)
    host = settings.host.lower()
    is_local = settings.uds is None and (
        host == "localhost" or host.startswith("127.") or host == "::1"
    )
    return (*LOCAL_HOSTS, host) if is_local else ()


def _traces_endpoint(given: str | None) -> str | None:
    """The collector of the flag; raises `ConfigError` where it cannot be one."""
    if given is None:
        return None
    try:
        from server.http.traces import collector_url  # imports OpenTelemetry
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--otlp-traces-endpoint needs OpenTelemetry: pip install 'tailrace[otel]' ({error})"
        ) from None
    try:
        return collector_url(given)
    except ValueError as error:
        raise ConfigError(f"--otlp-traces-endpoint {error}") from None


def _jinja(flag: str, given: str | None, names: Collection[str] = ()) -> str | None:
    """The template of a flag, or one of `names`; raises `ConfigError` for one that is none."""
    if given in names:
        return given
    source = _template_text(flag, given)
    if source is not None:
        try:
            SandboxedEnvironment().parse(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"{flag} is not a Jinja template: {error}") from None
    return source


def _template_text(flag: str, given: str | None) -> str | None:
    """The template that a flag holds or names; raises `ConfigError` for a missing file."""
    if given is None or "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {given}: {error}") from None


def _hf_overrides(settings: Settings) -> dict[str, Any]:
    """Values in place of the config's; raises `ConfigError` for what is no object of JSON."""
    found: dict[str, Any] = {}
    for name, given in (
        ("hf_overrides", settings.hf_overrides),
        ("rope_scaling", settings.rope_scaling),
    ):
        if given is None:
            continue
        try:
            value = orjson.loads(given)
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"{flag_of(name)} must be JSON: {error}") from None
        if not isinstance(value, dict):
            raise ConfigError(f"{flag_of(name)} must be an object of JSON, got {given[:64]}")
        found |= value if name == "hf_overrides" else {ROPE: value}
    if (why := refused_rope(found)) is not None:
        raise ConfigError(f"{flag_of(ROPE)}: {why}")
    return found


def _structured(settings: Settings) -> StructuredConfig:
    """The tokenizer by which grammars are followed: the one that texts are made with."""
    own = settings.tokenizer is None
    return StructuredConfig(
        tokenizer=settings.tokenizer or settings.model or str(demo_model()),
        revision=settings.revision if own else None,
        trust_remote_code=settings.trust_remote_code,
    )


def _speculation(settings: Settings) -> SpeculativeConfig | None:
    text = settings.speculative_config
    if text is None:
        return None
    own_head = None if settings.model else str(demo_model().parent / "eagle")
    return parse_speculative_config(text, own_head=own_head)


def demo_model() -> Path:
    """The folder of the model that comes with tailrace; raises `ConfigError` without it."""
    spec = find_spec("demo")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(folder) / "model" / "config.json").is_file():
            return Path(folder) / "model"
    raise ConfigError("no MODEL was given and the demo model (demo/model) is not installed")


def _sampling_defaults(settings: Settings, model: str) -> SamplingDefaults:
    """The defaults of sampling fields: neutral, or the model's generation_config.json's."""
    if settings.generation_config != "auto":
        return SamplingDefaults()
    from transformers import GenerationConfig  # seconds to import: only where it is asked for

    try:
        loaded: dict[str, Any] = GenerationConfig.from_pretrained(
            model, revision=settings.revision
        ).to_diff_dict()
    except (OSError, ValueError):  # the model has none
        return SamplingDefaults()
    if "max_new_tokens" in loaded:
        loaded["max_tokens"] = loaded["max_new_tokens"]
    known = SamplingDefaults.__struct_fields__
    values = {name: loaded[name] for name in known if loaded.get(name) is not None}
    try:
        defaults = msgspec.convert(values, SamplingDefaults, strict=False)
        fields = msgspec.structs.asdict(defaults)
        fields.pop("max_tokens")
        SamplingParams(**fields)
    except (ParameterError, msgspec.ValidationError) as error:
        raise ConfigError(f"--generation-config: {model}: {error}") from None
    return defaults
