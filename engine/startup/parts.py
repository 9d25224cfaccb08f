"""What an engine is made of."""

from __future__ import annotations

from typing import NamedTuple

from engine.config import EngineConfig, EngineInfo
from engine.engine import Engine
from engine.plan import StartingRunner
from engine.planning.drafting import DraftRules
from engine.structured.grammars import Grammars


class EngineParts(NamedTuple):
    """A configuration, its description, a runner that is ready, and rules of drafts and grammars.

    Engines may be made of one runner one after another, with other budgets, fewer rows or blocks.
    """

    config: EngineConfig
    info: EngineInfo
    runner: StartingRunner
    drafting: DraftRules
    grammars: Grammars | None = None

    def engine(self) -> Engine:
        """Make the engine."""
        return Engine(self.config, self.info, self.runner, self.drafting, self.grammars)
