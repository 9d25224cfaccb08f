"""A model that is served, for tests of what reads requests against one."""

from __future__ import annotations

from typing import Any

from server.config import ServerConfig
from server.fronts import FrontTable
from server.generation.served import ServedModel
from server.http.admission import AdmissionControl
from server.metrics import Metrics
from server.structured.checker import GrammarChecker
from server.text.tokenizer import Tokenizer
from server.work.worker import Worker
from tests.fakes import FakeEngine


def served_model(engine: FakeEngine, tokenizer: Tokenizer, **config: Any) -> ServedModel:
    """A model named "m" behind an engine; `config` is what differs from the defaults."""
    fronts = FrontTable()
    return ServedModel(
        engine=engine,
        config=ServerConfig(**{"model_names": ("m",), **config}),
        tokenizer=tokenizer,
        grammars=GrammarChecker(tokenizer, engine.info),
        admission=AdmissionControl(engine, 1, fronts),
        metrics=Metrics("m", engine, fronts),
        worker=Worker(),
    )
