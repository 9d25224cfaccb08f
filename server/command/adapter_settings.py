"""The settings of LoRA adapters."""

from __future__ import annotations

from typing import ClassVar

import orjson
from pydantic import BaseModel, Field

from engine.config import MAX_ADAPTER_RANK, AdaptersConfig, ConfigError
from server.command.values import Count, Several
from server.schema.adapter_path import path_refusal


class AdapterSettings(BaseModel):
    """LoRA adapters of the model."""

    TITLE: ClassVar = "adapters"

    enable_lora: bool = Field(
        False, description="Serve LoRA adapters, by the names that requests give as their model."
    )
    lora_modules: Several = Field(
        [],
        description="Adapters that are there from the start, each NAME=FOLDER, or a JSON object "
        'such as {"name": "sql", "path": "/adapters/sql"}.',
    )
    max_loras: Count = Field(
        8, ge=1, description="The most adapters that one step may have, all in the GPU's memory."
    )
    max_lora_rank: int = Field(
        16,
        ge=1,
        le=MAX_ADAPTER_RANK,
        description="The largest rank of an adapter; every slot takes memory for it.",
    )
    lora_target_modules: Several = Field(
        [],
        description="Modules that adapters may change, by name or the end of one, such as q_proj "
        "experts lm_head: slots have room for no others. By default all of them.",
    )
    max_cpu_loras: Count | None = Field(
        None,
        ge=1,
        description="The most adapters in the host's memory: others are read again when they are "
        "asked for. By default all of them are.",
    )
    lora_root: str | None = Field(
        None, description="The folder that adapters may be loaded from. By default any."
    )


def adapters_config(settings: AdapterSettings) -> AdaptersConfig | None:
    """The adapters of the engine; None where none are served. Raises `ConfigError`."""
    if not settings.enable_lora:
        given = settings.model_fields_set & AdapterSettings.model_fields.keys()
        for name in sorted(given - {"enable_lora"}):
            raise ConfigError(f"--{name.replace('_', '-')} needs --enable-lora")
        return None
    modules: dict[str, str] = {}
    for word in settings.lora_modules:
        name, path = _module(word)
        if name in modules:
            raise ConfigError(f"--lora-modules names {name!r} twice")
        if (words := path_refusal(path, settings.lora_root)) is not None:
            raise ConfigError(f"--lora-modules {name}: the folder {words}")
        modules[name] = path
    return AdaptersConfig(
        max_loras=settings.max_loras,
        max_rank=settings.max_lora_rank,
        max_cpu_loras=settings.max_cpu_loras,
        modules=tuple(modules.items()),
        target_modules=tuple(settings.lora_target_modules) or None,
    )


def _module(word: str) -> tuple[str, str]:
    """The name and folder of an adapter, of NAME=FOLDER or a JSON object."""
    if word.startswith("{"):
        try:
            fields = orjson.loads(word)
            name, path = fields["name"], fields["path"]
        except (ValueError, KeyError) as error:
            raise ConfigError(f"--lora-modules {word}: not an object with name and path") from error
    else:
        name, _, path = word.partition("=")
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise ConfigError(f"--lora-modules must be NAME=FOLDER, got {word!r}")
    return name, path
