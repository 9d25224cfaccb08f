"""What every request is read against: one value, passed along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import structs

from engine.client import EngineHandle
from engine.contracts.info import EngineInfo
from server.config import ServerConfig
from server.http.admission import AdmissionControl
from server.metrics import Metrics
from server.structured.checker import GrammarChecker
from server.text.tokenizer import Tokenizer
from server.version import VERSION
from server.work.worker import Worker


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model that is served, and what its requests pass.

    Attributes:
        config: the limits of requests.
        worker: the thread that writes big replies.
    """

    engine: EngineHandle
    config: ServerConfig
    tokenizer: Tokenizer
    grammars: GrammarChecker
    admission: AdmissionControl
    metrics: Metrics
    worker: Worker

    @property
    def info(self) -> EngineInfo:
        """The engine's description, which changes as a fleet's replicas come and go."""
        return self.engine.info

    @property
    def max_drawn_top(self) -> int:
        """The most top tokens of a drawn token; -1 for no limit but the vocabulary."""
        most = self.info.max_drawn_top
        return self.config.max_logprobs if most == -1 else most

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint`: this version and a hash of all that decides bits."""
        parts = "tailrace", VERSION, self.info.fingerprint, self.engine.state.weight_tag
        return "-".join(filter(None, parts))

    def fingerprint_of(self, model: str) -> str:
        """The fingerprint of replies by a checked name; those of an adapter are its own."""
        digests = {each.name: each.digest for each in self.engine.state.adapters}
        is_base = model in self.config.model_names or model not in digests
        return self.fingerprint if is_base else f"{self.fingerprint}-{digests[model][:8]}"

    @property
    def quantization(self) -> dict[str, Any] | None:
        """How far the engine's weights are from those they were made of, as in replies."""
        stated = self.info.quantization
        return None if stated is None else structs.asdict(stated)
