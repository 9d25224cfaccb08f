"""An OTLP collector over HTTP on a free port, which keeps the spans that it is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What was sent so far.

    Attributes:
        spans: in the order in which they came. resources: attributes of whom they came from.
        paths: of the requests. status: what is answered.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status = 200

    def take(self, path: str, raw: bytes) -> int:
        self.paths.append(path)
        for each in ExportTraceServiceRequest.FromString(raw).resource_spans:
            self.resources.append(attributes(each.resource))
            for scope in each.scope_spans:
                self.spans += scope.spans
        return self.status

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def wait(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until so many spans have come."""
        deadline = time.monotonic() + timeout_s
        while len(self.spans) < count:
            assert time.monotonic() < deadline, f"{len(self.spans)} spans came"
            time.sleep(0.02)


def attributes(of: Any) -> dict[str, Any]:
    """Attributes of a span or resource, by name."""
    return {pair.key: _value(pair.value) for pair in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(collector.take(self.path, raw))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
