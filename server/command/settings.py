"""The command line as one typed object: flags over `TAILRACE_*` over a file over defaults."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from engine.config import ConfigError
from server.command.adapter_settings import AdapterSettings
from server.command.engine_settings import (
    CacheSettings,
    ModelSettings,
    SamplingSettings,
    SchedulingSettings,
    SpeculationSettings,
)
from server.command.http_settings import (
    ChatSettings,
    FileSettings,
    HttpSettings,
    LimitSettings,
    LogSettings,
    ResponseStoreSettings,
    RolloutSettings,
    SecuritySettings,
    TraceSettings,
)

PREFIX = "TAILRACE_"


class Settings(
    ModelSettings,
    CacheSettings,
    SchedulingSettings,
    SamplingSettings,
    SpeculationSettings,
    AdapterSettings,
    HttpSettings,
    ChatSettings,
    ResponseStoreSettings,
    LimitSettings,
    SecuritySettings,
    RolloutSettings,
    LogSettings,
    TraceSettings,
    FileSettings,
    BaseSettings,
):
    """Every setting of `tailrace serve`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", protected_namespaces=(), env_ignore_empty=True
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
        """The sources of values, of which the earlier wins."""
        return init_settings, env_settings, _FileSource(settings_cls)

    @field_validator("*", mode="before")
    @classmethod
    def refuse_empty(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse an empty text, as `--model "$MODEL"` gives where the variable is not set."""
        if value == "" and cls.model_fields[str(info.field_name)].default != "":
            raise PydanticCustomError("empty_text", "is empty")
        return value

    def model_post_init(self, context: Any) -> None:
        """Check rules about several fields."""
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("--ssl-keyfile and --ssl-certfile need each other")
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(f"{flag_of(name)}: no such file: {path}")
        if self.page_verify and not self.page:
            raise ConfigError("--page-verify needs the page: leave out --no-page")


GROUPS: tuple[type[BaseModel], ...] = (
    *(ModelSettings, CacheSettings, SchedulingSettings, SamplingSettings, SpeculationSettings),
    AdapterSettings,
    *(HttpSettings, ChatSettings, ResponseStoreSettings, LimitSettings, SecuritySettings),
    *(RolloutSettings, LogSettings),
    *(TraceSettings, FileSettings),
)
"""Groups of settings in the order of the help."""

ENVIRONMENT_ONLY = frozenset({"use_flashinfer_sampler"})
"""Settings without a flag."""


def flag_of(field: str) -> str:
    """The flag of a field: `--max-num-seqs` of `max_num_seqs`."""
    return f"--{field.replace('_', '-')}"


def variable_of(field: str) -> str:
    """The environment variable of a field."""
    return f"{PREFIX}{field.upper()}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is nearest to one that is not; empty if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def load_settings(flags: dict[str, Any]) -> Settings:
    """Read flags over environment over file.

    Args:
        flags: what the command line gave, by field.

    Raises:
        ConfigError: an unknown setting, or one that breaks its limit, by its name and value.
    """
    _check_environment()
    try:
        return Settings(**flags)
    except ValidationError as error:
        raise ConfigError(_explain(error.errors(include_url=False)[0], flags)) from None


def _check_environment() -> None:
    known = {variable_of(field) for field in Settings.model_fields}
    for name in sorted(os.environ):
        if not name.startswith(PREFIX) or name in known:
            continue
        if re.search(r"_SERVICE_|_PORT_\d", name):
            hint = (
                "; Kubernetes sets it for a service named tailrace: rename the service, or set "
                "enableServiceLinks: false"
            )
        else:
            hint = nearest(name, known)
        raise ConfigError(f"the environment variable {name} is no setting{hint}")


class _FileSource(PydanticBaseSettingsSource):
    """The file that a flag or the environment names."""

    def __call__(self) -> dict[str, Any]:
        file = self.current_state.get("config")
        return _read_file(Path(file)) if file else {}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Required by the base class; the file is read as a whole."""
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
            hint = nearest(key, Settings.model_fields)
            raise ConfigError(f"--config: {path} holds the unknown setting {key!r}{hint}")
    return values


def _explain(error: ErrorDetails, flags: dict[str, Any]) -> str:
    """`--port must be at most 65535, got 70000`, with the name under which it was given."""
    context: dict[str, Any] = error.get("ctx", {})
    if not error["loc"]:
        return str(context["error"])
    field = str(error["loc"][0])
    name = flag_of(field)
    if field not in flags and variable_of(field) in os.environ:
        name = variable_of(field)
    rule = {
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be above {gt}",
        "less_than_equal": "must be at most {le}",
        "literal_error": "must be {expected}",
        "int_parsing": "must be an integer",
        "float_parsing": "must be a number",
        "bool_parsing": "must be true or false",
        "empty_text": "must be named or left out",
    }.get(error["type"])
    words = rule.format(**context) if rule else f"is not valid: {error['msg']}"
    return f"{name} {words}, got {error['input']!r}"
