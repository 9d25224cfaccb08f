"""A trace of each request that generates, made of its recorded times once it has ended.

A request is a span of OpenTelemetry with up to three parts: waiting for a row (`queue`), computing
the prompt (`prefill`), and generating (`decode`). Names of attributes are those of the semantic
conventions for HTTP servers and generative models; what these lack begins with `tailrace.`. Prompts
and replies are in none of them. `OTEL_` variables of the SDK hold: sampling, headers, resource.

This module imports OpenTelemetry, so it is imported only where traces are asked for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.types import Scope

from server.http.account import GenerationReport, RequestAccount, header
from server.version import VERSION

logger = logging.getLogger("tailrace")

QUEUE, BATCH = 4096, 128
"""Requests that wait to be sent at most, and those that are sent together."""
PAUSE_S = 1.0
"""Seconds between two looks at what waits."""
FLUSH_S = 5.0
"""Seconds that the last spans have to leave when the server ends."""
_GIVE_UP_S = 1.0
_NO_TRACE = "a request has no trace"
_COLLECTOR_PATH = "/v1/traces"
_OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
_SCORING = "score"
_PARTS = ("queue", "prefill", "decode")


class _Exporter(OTLPSpanExporter):
    """Sends spans; of a collector that takes none it warns once, not at every attempt."""

    is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.is_failing = result is not SpanExportResult.SUCCESS
        return result

    def is_news(self, record: logging.LogRecord) -> bool:
        """Whether a line of the exporter's is to be written."""
        return record.levelno >= logging.ERROR and not self.is_failing


class _Ended(NamedTuple):
    """A request that has ended, and what is reported of it.

    Attributes:
        end_ns: when, in Unix nanoseconds. end: the same on the clock of the report, in seconds.
    """

    carrier: dict[str, str]
    operation: str
    attributes: dict[str, AttributeValue]
    error: str | None
    report: GenerationReport | None
    seconds: float
    end_ns: int
    end: float


class _Made(SpanProcessor):
    """Keeps spans until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """The spans that ended since the last look."""
        spans, self._spans = self._spans, []
        return spans


class Traces:
    """Notes requests that have ended; a thread of its own makes spans of them and sends those.

    Spans cost ten times what noting costs, and requests that begin together end together: made at
    once, theirs would delay the replies of the others. A collector that is slow or gone costs
    requests nothing, and loses the oldest of them.

    Args:
        endpoint: URL of an OTLP collector over HTTP; without a path it gets `/v1/traces`.
    """

    def __init__(self, endpoint: str) -> None:
        self._exporter = _Exporter(collector_url(endpoint))
        self._lines = logging.getLogger(trace_exporter.__name__)
        self._lines.addFilter(self._exporter.is_news)
        self._made = _Made()
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(self._made)
        self._tracer = provider.get_tracer("tailrace", VERSION)
        self._context = TraceContextTextMapPropagator()
        self._ended: deque[_Ended] = deque(maxlen=QUEUE)
        self._closing, self._has_given_up = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def record(
        self, scope: Scope, account: RequestAccount, path: str, outcome: str, seconds: float
    ) -> None:
        """Note a request that has just ended; whatever goes wrong stays here.

        Args:
            path: of the request, without the prefix of `--root-path`.
            outcome: as the metrics count it. seconds: that the request took.
        """
        try:
            ended = _Ended(
                carrier=_carrier(scope),
                operation=_OPERATIONS.get(path, _SCORING),
                attributes=_http_attributes(scope, account, path) | {"tailrace.outcome": outcome},
                error=(account.reason or "") if outcome == "server_error" else None,
                report=None if account.report is None else account.report(),
                seconds=seconds,
                end_ns=time.time_ns(),
                end=time.monotonic(),
            )
        except Exception:
            logger.exception(_NO_TRACE)
        else:
            self._ended.append(ended)

    def _run(self) -> None:
        while not self._closing.wait(PAUSE_S):
            self._send()
        self._send()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _send(self) -> None:
        """Send what was noted, a batch at a time."""
        while self._ended and not self._has_given_up:
            for _ in range(min(BATCH, len(self._ended))):
                try:
                    self._make(self._ended.popleft())
                except Exception:
                    logger.exception(_NO_TRACE)
            try:
                self._exporter.export(self._made.take())
            except Exception:
                logger.exception("spans were not sent")

    def _make(self, ended: _Ended) -> None:
        report, end_ns = ended.report, ended.end_ns
        start_ns = end_ns - int(ended.seconds * 1e9)
        if report is not None and report.queued_at:
            # Its seconds were counted a moment before its end was read.
            start_ns = min(start_ns, end_ns - int((ended.end - report.queued_at) * 1e9))
        span = self._tracer.start_span(
            ended.operation if report is None else f"{ended.operation} {report.model}",
            context=self._context.extract(ended.carrier),
            kind=SpanKind.SERVER,
            start_time=start_ns,
            attributes={
                "gen_ai.operation.name": ended.operation,
                "gen_ai.provider.name": "tailrace",
                **ended.attributes,
                **({} if report is None else report_attributes(report)),
            },
        )
        if ended.error is not None:
            span.set_status(Status(StatusCode.ERROR, ended.error))
        if report is not None and span.is_recording():
            inside = trace.set_span_in_context(span)
            for name, start, end in parts_of(report, ended.end):
                begin = end_ns - int((ended.end - start) * 1e9)
                part = self._tracer.start_span(name, context=inside, start_time=begin)
                part.end(end_time=end_ns - int((ended.end - end) * 1e9))
        span.end(end_time=end_ns)

    def close(self) -> None:
        """Send what waits, for `FLUSH_S` at most; what has not left by then is lost."""
        self._closing.set()
        self._thread.join(FLUSH_S)
        if self._thread.is_alive():
            self._has_given_up = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # waits no longer to try again
            self._thread.join(_GIVE_UP_S)
        self._lines.removeFilter(self._exporter.is_news)


def collector_url(endpoint: str) -> str:
    """The URL that spans are sent to; raises `ValueError` for what is no URL of HTTP."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts):
        raise ValueError(
            "must be the URL of an OTLP collector over HTTP, such as "
            f"http://localhost:4318/v1/traces; got {endpoint!r}"
        )
    path = parts.path if parts.path.strip("/") else _COLLECTOR_PATH
    return urlunsplit(parts._replace(path=path))


def _has_port(parts: SplitResult) -> bool:
    """Whether the port, where one is given, is one."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def parts_of(report: GenerationReport, end: float) -> Iterator[tuple[str, float, float]]:
    """Names, beginnings and ends of a request's parts, on the clock of the report.

    A part that never ended goes on to the end; those after it are missing.
    """
    stamps = [report.queued_at, report.started_at, report.drew_at]
    for name, start, until in zip(_PARTS, stamps, [*stamps[1:], end], strict=True):
        if not start:
            return
        yield name, start, until or end


def report_attributes(report: GenerationReport) -> dict[str, AttributeValue]:
    """What a request asked for and got, by the names of the conventions."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.request.model": report.model,
        "gen_ai.response.model": report.model,
        "gen_ai.response.id": report.reply_id,
        "gen_ai.usage.input_tokens": report.num_prompt_tokens,
        "gen_ai.usage.output_tokens": report.num_generated,
        "gen_ai.usage.cache_read.input_tokens": report.num_cached,
        "gen_ai.response.finish_reasons": report.finish_reasons,
    }
    if (params := report.params) is not None:
        attributes |= {
            "gen_ai.request.choice.count": report.num_choices,
            "gen_ai.request.max_tokens": report.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k,
            "gen_ai.request.frequency_penalty": params.frequency_penalty,
            "gen_ai.request.presence_penalty": params.presence_penalty,
        }
        if params.seed is not None:
            attributes["gen_ai.request.seed"] = params.seed
    if (drafts := report.drafts) is not None:
        attributes |= {
            "tailrace.speculation.num_drafts": drafts.num_drafts,
            "tailrace.speculation.num_draft_tokens": drafts.num_draft_tokens,
            "tailrace.speculation.num_accepted_tokens": drafts.num_accepted,
            "tailrace.speculation.acceptance_per_position": drafts.acceptance,
        }
    if (decisions := report.decisions) is not None:
        attributes |= {
            "tailrace.decisions.num_questions": decisions.num_questions,
            "tailrace.decisions.num_labels": decisions.num_labels,
            "tailrace.decisions.lowest_label_mass": decisions.lowest_label_mass,
        }
    return attributes


def _http_attributes(scope: Scope, account: RequestAccount, path: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "http.request.method": scope["method"],
        "http.route": path,
        "url.path": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
    }
    if account.status:
        attributes["http.response.status_code"] = account.status
    if account.status >= 500:
        attributes["error.type"] = str(account.status)
    if account.request_id is not None:
        attributes["tailrace.request_id"] = account.request_id
    return attributes


def _carrier(scope: Scope) -> dict[str, str]:
    """The headers that say which trace a request belongs to."""
    values = {name: header(scope, name.encode()) for name in ("traceparent", "tracestate")}
    return {name: value for name, value in values.items() if value is not None}


def _resource() -> Resource:
    """What names the server in traces; `OTEL_SERVICE_NAME` and the like go before it."""
    own = Resource({"service.name": "tailrace", "service.version": VERSION})
    return Resource.create({}).merge(own).merge(OTELResourceDetector().detect())
