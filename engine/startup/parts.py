"""What an engine is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from engine.config import EngineConfig
from engine.contracts.adapters import AdapterReader
from engine.contracts.info import EngineInfo
from engine.contracts.model import CausalLM
from engine.contracts.runner import StartingRunner
from engine.engine import Engine
from engine.planning.drafting import DraftRules
from engine.startup.adapters import load_modules
from engine.structured.grammars import Grammars


class EngineParts(NamedTuple):
    """A configuration, its description, a runner that is ready, rules of drafts and grammars.

    Engines may be made of one runner one after another, with other budgets, fewer rows or blocks.
    """

    config: EngineConfig
    info: EngineInfo
    runner: StartingRunner
    drafting: DraftRules
    grammars: Grammars | None = None
    adapters: AdapterReader | None = None

    def engine(self) -> Engine:
        """Make the engine, with the adapters that the configuration names."""
        drafting, grammars, adapters = self.drafting, self.grammars, self.adapters
        engine = Engine(self.config, self.info, self.runner, drafting, grammars, adapters)
        if self.config.adapters is not None and adapters is not None:
            load_modules(engine, self.config.adapters)
        return engine


class BuildParts(Protocol):
    """Makes the parts of configurations over a model that is loaded once."""

    def __call__(
        self, config: EngineConfig, watch: Callable[[CausalLM], CausalLM] | None = None
    ) -> EngineParts:
        """Make them; `watch` wraps the model."""
        ...
