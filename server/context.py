"""The parts of a server that handlers work with: made once, found through the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from engine.client import EngineHandle
from engine.contracts.info import EngineInfo
from engine.submission import EngineDeadError
from server.config import ServerConfig
from server.conversation.parsing.parsers import Parsers
from server.conversation.served import ServedChatModel
from server.conversation.template import ChatTemplate
from server.conversation.template_rendering import make_ready
from server.fronts import FrontTable
from server.http.admission import AdmissionControl
from server.http.body import BodyReader
from server.http.connections import ConnectionPool
from server.http.lifecycle import Lifecycle
from server.metrics import Metrics
from server.response_store.store import ResponseStore
from server.scoring.readers import PromptReaders
from server.scoring.rerankers import Reranker
from server.self_test import SelfTest
from server.structured.checker import GrammarChecker
from server.text.tokenizer import Tokenizer
from server.work.processes import Preparation, ProcessPool
from server.work.worker import Worker

if TYPE_CHECKING:
    from server.http.traces import Traces


NUM_LARGE = 2
"""Large bodies read at once: a second need not wait for one that takes seconds."""


@dataclass(frozen=True, kw_only=True)
class Context(ServedChatModel):
    """The parts of one server: the model that it serves, and all that a request passes.

    Attributes:
        large: processes that read large bodies and render large conversations.
        responses: where responses are kept; None for nowhere.
        traces: where traces of requests go; None for nowhere.
    """

    fronts: FrontTable
    lifecycle: Lifecycle
    bodies: BodyReader
    large: ProcessPool
    connections: ConnectionPool
    readers: PromptReaders
    reranker: Reranker
    self_test: SelfTest
    responses: ResponseStore | None = None
    traces: Traces | None = None

    def fail_all(self, error: EngineDeadError) -> None:
        """Answer every open request with an error, also those whose bodies are still to come."""
        self.bodies.give_up()
        self.admission.fail_all(error)

    def close(self) -> None:
        """End the threads and processes of these parts, but for those of traces."""
        self.large.close()
        self.worker.close()
        self.template.close()
        self.grammars.close()
        if self.responses is not None:
            self.responses.close()


def make_context(
    engine: EngineHandle, tokenizer: Tokenizer, config: ServerConfig, fronts: FrontTable
) -> Context:
    """Make the parts of a server over an engine."""
    tokenizer.reserve(engine.info.vocab_size)
    parsers = Parsers(tokenizer, config.tool_call_parser, config.reasoning_parser)
    metrics = Metrics(config.model_names[0], engine, fronts, prefix=config.metrics_prefix)
    large = ProcessPool("large bodies", NUM_LARGE, setup=lambda: Preparation(make_ready))
    template = _template(tokenizer, config, engine.info, large)
    return Context(
        engine=engine,
        fronts=fronts,
        tokenizer=tokenizer,
        template=template,
        config=config,
        lifecycle=Lifecycle(),
        bodies=BodyReader(
            config.max_body_bytes, large, accepts_unknown=config.accepts_unknown_fields
        ),
        large=large,
        admission=AdmissionControl(
            engine, config.max_waiting_requests, fronts, metrics.turned_away.inc
        ),
        connections=ConnectionPool(
            config.max_connections, fronts, metrics.connections_over_limit.inc
        ),
        metrics=metrics,
        worker=Worker(),
        grammars=GrammarChecker(tokenizer, engine.info, is_lenient=config.lenient_schemas),
        parsers=parsers,
        readers=PromptReaders(template, parsers, tokenizer),
        reranker=Reranker(tokenizer, config.rerank_template, config.model_root),
        self_test=SelfTest(config.verify_command, fronts),
        responses=ResponseStore(config.response_store) if config.response_store else None,
        traces=_traces(config),
    )


def _traces(config: ServerConfig) -> Traces | None:
    if config.otlp_traces_endpoint is None:
        return None
    from server.http.traces import Traces  # imports OpenTelemetry, which may be missing

    return Traces(config.otlp_traces_endpoint)


def _template(
    tokenizer: Tokenizer, config: ServerConfig, info: EngineInfo, large: ProcessPool
) -> ChatTemplate:
    about = tokenizer.description
    source = config.chat_template or about.get("chat_template")
    ends = {tokenizer.texts[i] for i in info.eos_token_ids}
    return ChatTemplate(
        source,
        about.get("special_tokens_map") or {},
        large,
        ends=ends,
        trusts_requests=config.trust_request_chat_template,
    )


def context_of(request: Request) -> Context:
    """The context of the server that got this request."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context
