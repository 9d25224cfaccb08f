"""The command line as one typed thing: flags over `TAILRACE_*` over a file over defaults."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import yaml  # type: ignore[import-untyped]
from pydantic import BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from engine.config import ConfigError
from sampling.params import SEED_MAX, SEED_MIN, LogprobsMode
from server.schema.prompts import MAX_PROMPTS

PREFIX = "TAILRACE_"

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _count(value: Any) -> Any:
    """`4k` is 4000 and `4K` is 4096, as vLLM reads them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", value) if isinstance(value, str) else None
    return int(float(match[1]) * _UNITS[match[2]]) if match and match[2] else value


def _several(value: Any) -> Any:
    """A list, a JSON list, or words with commas between."""
    if not isinstance(value, str):
        return value
    if value.startswith("["):
        return orjson.loads(value)
    return [word.strip() for word in value.split(",") if word.strip()]


def _json(value: Any) -> Any:
    """A file may spell out what the command line gives as text."""
    return orjson.dumps(value).decode() if isinstance(value, dict) else value


Json = Annotated[str, NoDecode, BeforeValidator(_json)]
Count = Annotated[int, BeforeValidator(_count)]
Several = Annotated[list[str], NoDecode, BeforeValidator(_several)]
LogLevel = Literal["critical", "error", "warning", "info", "debug", "trace"]
DtypeName = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]


class Settings(BaseSettings):
    """Every flag of `tailrace serve`; vLLM's names wherever they mean the same."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", protected_namespaces=(), env_ignore_empty=True
    )

    model: str | None = Field(None, description="Folder or hub id; the demo model by default.")
    config: Path | None = Field(None, description="YAML file of these settings.")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    uds: str | None = Field(None, description="Unix socket to listen on instead.")
    api_key: Several = Field([], description="Keys, any of which opens the API.")
    open_metrics: bool = Field(False, description="/metrics needs no key.")
    ssl_keyfile: Path | None = Field(None, description="TLS key.")
    ssl_certfile: Path | None = Field(None, description="TLS certificate.")
    ssl_ca_certs: Path | None = Field(None, description="CA certificates of clients.")
    ssl_cert_reqs: int = Field(0, ge=0, le=2, description="Client certificates: Python's ssl.")
    allowed_origins: Several = Field([], description="Browser origins (CORS); * for all.")
    root_path: str = Field("", description="Path a proxy puts in front.")
    uvicorn_log_level: LogLevel = Field("info", description="Of the HTTP server.")
    disable_uvicorn_access_log: bool = Field(False, description="No line a request.")
    disable_access_log_for_endpoints: Several = Field([], description="No line for these paths.")
    served_model_name: Several = Field([], description="Names the model answers to.")
    enable_request_id_headers: bool = Field(False, description="Replies carry X-Request-Id.")
    enable_prompt_tokens_details: bool = Field(False, description="Usage tells cached tokens.")
    enable_force_include_usage: bool = Field(False, description="Streams always end with usage.")
    enable_log_requests: bool = Field(False, description="Log each request's parameters.")
    max_log_len: int | None = Field(None, ge=0, description="Characters of prompts in the log.")
    return_tokens_as_token_ids: bool = Field(False, description='Logprobs name "token_id:N".')
    max_waiting_requests: Count = Field(16384, ge=0, description="Prompts that may wait; then 429.")
    max_completion_prompts: Count = Field(
        1024, ge=1, le=MAX_PROMPTS, description="Prompts a request."
    )
    max_n_sequences: Count = Field(1024, ge=1, description="Largest n of a request.")
    max_body_bytes: Count = Field(32 << 20, ge=1024, description="Longest request body; then 413.")
    stream_interval: int = Field(1, ge=1, description="Tokens between two chunks of a stream.")
    shutdown_timeout: float = Field(30.0, ge=0, description="Seconds to finish after SIGTERM.")

    tokenizer: str | None = Field(None, description="Folder or hub id; the model's by default.")
    revision: str | None = Field(None, description="Of a hub id.")
    trust_remote_code: bool = Field(False, description="Run code that comes with the model.")
    dtype: DtypeName = Field("auto", description="Of weights; auto is float32 on CPU.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the model runs.")
    load_format: Literal["auto", "safetensors", "dummy"] = Field(
        "auto", description="dummy fills random weights."
    )
    model_impl: Literal["auto", "fused", "transformers"] = Field("auto", description="Modules.")
    max_model_len: Count | None = Field(None, ge=1, description="Context; the model's by default.")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of GPU memory.")
    num_gpu_blocks_override: Count | None = Field(None, ge=2, description="Blocks of KV cache.")
    cpu_kvcache_space: float = Field(1.0, gt=0, description="GiB of KV cache on CPU.")
    block_size: int = Field(16, ge=1, description="Tokens a block.")
    enable_prefix_caching: bool = Field(True, description="Reuse blocks of equal prefixes.")
    max_num_seqs: Count = Field(256, ge=1, description="Choices running at once.")
    max_num_batched_tokens: Count | None = Field(
        None, ge=1, description="Tokens a step; 8192 by default on a GPU, 2048 on a CPU."
    )
    enable_chunked_prefill: bool = Field(True, description="Split prompts over steps.")
    scheduling_policy: Literal["fcfs", "priority"] = Field("fcfs", description="Who runs first.")
    num_threads: int | None = Field(None, ge=1, description="Threads of the engine on CPU.")
    step_timeout: float = Field(300.0, gt=0, description="Seconds after which a step is hung.")

    seed: int | None = Field(
        None, ge=SEED_MIN, le=SEED_MAX, description="Makes drawn seeds a repeatable sequence."
    )
    max_logprobs: int = Field(20, ge=-1, description="Top tokens a request may ask; -1: any.")
    logprobs_mode: LogprobsMode = Field("raw_logprobs", description="Which values are reported.")
    use_fp64_gumbel: bool = Field(False, description="Float64 noise on every path, or no start.")
    generation_config: Literal["neutral", "vllm", "auto"] = Field(
        "neutral", description="auto takes sampling defaults from the model."
    )
    speculative_config: Json | None = Field(
        None, description="JSON: who drafts tokens and how they are verified; null: nobody drafts."
    )
    use_flashinfer_sampler: Literal["0", "1"] | None = Field(
        None, description="1 insists on FlashInfer's sampler, 0 refuses it."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The earlier wins."""
        return init_settings, env_settings, _FileSource(settings_cls)

    def model_post_init(self, context: Any) -> None:
        """Rules about several fields."""
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("--ssl-keyfile and --ssl-certfile need each other")
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(f"{flag_of(name)}: no such file: {path}")


ENVIRONMENT_ONLY = frozenset({"use_flashinfer_sampler"})


def flag_of(field: str) -> str:
    """`--max-num-seqs` of `max_num_seqs`."""
    return f"--{field.replace('_', '-')}"


def load_settings(flags: dict[str, Any]) -> Settings:
    """Flags over environment over file; raises `ConfigError` naming setting, limit and value.

    Args:
        flags: what the command line gave, by field.
    """
    try:
        return Settings(**flags)
    except ValidationError as error:
        raise ConfigError(_explain(error.errors(include_url=False)[0], flags)) from None


class _FileSource(PydanticBaseSettingsSource):
    """The file that a flag or the environment names."""

    def __call__(self) -> dict[str, Any]:
        file = self.current_state.get("config")
        return _read_file(Path(file)) if file else {}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: the file is read as a whole."""
        return None, field_name, False


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--config: {path} must hold settings by name")
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    for key in values:
        if key not in Settings.model_fields:
            raise ConfigError(f"--config: {path} holds the unknown setting {key!r}")
    return values


def _explain(error: ErrorDetails, flags: dict[str, Any]) -> str:
    """`--port must be at most 65535, got 70000`, with the name under which it was given."""
    context: dict[str, Any] = error.get("ctx", {})
    if not error["loc"]:
        return str(context["error"])
    field = str(error["loc"][0])
    name = flag_of(field)
    if field not in flags and f"{PREFIX}{field.upper()}" in os.environ:
        name = f"{PREFIX}{field.upper()}"
    rule = {
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be above {gt}",
        "less_than_equal": "must be at most {le}",
        "literal_error": "must be {expected}",
        "int_parsing": "must be an integer",
        "float_parsing": "must be a number",
        "bool_parsing": "must be true or false",
    }.get(error["type"])
    words = rule.format(**context) if rule else f"is not valid: {error['msg']}"
    return f"{name} {words}, got {error['input']!r}"
