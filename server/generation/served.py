"""What every request is read against: one value, passed along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import structs

from engine.client import EngineHandle
from engine.contracts.info import EngineInfo
from engine.submission import Entry
from server.config import ServerConfig
from server.http.admission import AdmissionControl
from server.metrics import Metrics
from server.structured.checker import GrammarChecker
from server.text.tokenizer import Tokenizer
from server.version import VERSION
from server.work.worker import Worker


class ReplyFingerprint:
    """The fingerprint of one reply: that of the weights which drew the last of its tokens.

    Args:
        head, tail: what stands before and after the tag of the weights.
        weight_tag: of the weights that are served before any token has come.
    """

    def __init__(self, head: str, weight_tag: str, tail: str) -> None:
        self._head, self._tail = head, tail
        self._has_tokens = False
        self._name(weight_tag)

    def note(self, entry: Entry) -> None:
        """Note tokens that came, or an end without any."""
        if entry.num_new or not self._has_tokens:
            if entry.output.weight_tag != self._weight_tag:
                self._name(entry.output.weight_tag)
            self._has_tokens = entry.num_new > 0

    def _name(self, weight_tag: str) -> None:
        self._weight_tag = weight_tag
        self._text = "-".join(filter(None, (self._head, weight_tag, self._tail)))

    def __str__(self) -> str:
        """Every chunk of a stream asks for it, so it is put together once for each tag."""
        return self._text


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

    def fingerprint_of(self, model: str) -> ReplyFingerprint:
        """The `system_fingerprint` of a reply by a checked name: this version and a hash of all
        that decides bits, the tag of updated weights, and a part of an adapter's hash.
        """
        state = self.engine.state
        digests = {each.name: each.digest for each in state.adapters}
        is_base = model in self.config.model_names or model not in digests
        head = "-".join(filter(None, ("tailrace", VERSION, self.info.fingerprint)))
        return ReplyFingerprint(head, state.weight_tag, "" if is_base else digests[model][:8])

    @property
    def quantization(self) -> dict[str, Any] | None:
        """How far the engine's weights are from those they were made of, as in replies."""
        stated = self.info.quantization
        return None if stated is None else structs.asdict(stated)
