"""The adapters that are there from the start."""

from __future__ import annotations

from concurrent.futures import wait
from functools import partial

from msgspec import structs

from engine.config import AdaptersConfig
from engine.contracts.adapters import AdapterSource
from engine.engine import Engine
from engine.errors import ConfigError, ControlError
from engine.progress import phase


def load_modules(engine: Engine, config: AdaptersConfig) -> None:
    """Load the adapters that a configuration names; the engine's description lists them then.

    Raises:
        ConfigError: one of them cannot be served.
    """
    adapters = engine.adapters
    assert adapters is not None

    def check(name: str, path: str, error: ControlError | None) -> None:
        if error is not None:
            raise ConfigError(f"--lora-modules {name}={path}: {error}")

    with phase("loading adapters"):
        for name, path in config.modules:
            source = AdapterSource(path)
            adapters.load(name, source, replaces=False, done=partial(check, name, path))
        while readings := adapters.readings:
            wait(readings)
            adapters.settle()
    engine.info = structs.replace(engine.info, adapters=adapters.named)
