"""What handlers work with: made once by `create_app`, found through the request."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from starlette.requests import Request

from engine.client import EngineHandle
from server.config import ServerConfig
from server.http.admission import AdmissionControl
from server.http.body import BodyReader
from server.http.lifecycle import Lifecycle
from server.http.worker import Worker
from server.metrics import Metrics
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Context:
    """The parts of one server.

    Attributes:
        seeds: draws seeds for requests without one; None leaves it to the engine.
        created: when the server began, in Unix seconds.
    """

    engine: EngineHandle
    tokenizer: Tokenizer
    config: ServerConfig
    lifecycle: Lifecycle
    bodies: BodyReader
    admission: AdmissionControl
    metrics: Metrics
    worker: Worker
    seeds: random.Random | None
    created: int = field(default_factory=lambda: int(time.time()))


def make_context(engine: EngineHandle, tokenizer: Tokenizer, config: ServerConfig) -> Context:
    """The parts, put together."""
    tokenizer.reserve(engine.info.vocab_size)
    return Context(
        engine=engine,
        tokenizer=tokenizer,
        config=config,
        lifecycle=Lifecycle(),
        bodies=BodyReader(config.max_body_bytes),
        admission=AdmissionControl(engine, config.max_waiting_requests),
        metrics=Metrics(config.model_names[0], engine),
        worker=Worker(),
        seeds=None if config.seed is None else random.Random(config.seed),
    )


def context_of(request: Request) -> Context:
    """The server that got this request."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context
