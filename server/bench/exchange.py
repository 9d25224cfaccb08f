"""One request and its reply, measured."""

from __future__ import annotations

import asyncio
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

from server.bench.connection import ClientConnection, ConnectionLostError, reason
from server.bench.events import EventTimes, error_message, one_line, usage_of
from server.bench.target import Target


@dataclass(slots=True, kw_only=True)
class Exchange:
    """What one request took and brought.

    Attributes:
        sent_s, seconds: when it was sent, on the clock of this machine, and until its reply ended.
        input_tokens, output_tokens: as the reply's usage counts them.
        cached_tokens: input tokens that the server had computed before, where it says so.
        first_token_s: from sending to the first chunk; of streams, as those below.
        streaming_s: from the first chunk to the last.
        num_chunks: events with a choice.
        gaps: seconds between chunks, float64.
        error: why there is no reply, in one line; nothing above but times is meant then.
    """

    sent_s: float
    seconds: float
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    first_token_s: float | None = None
    streaming_s: float = 0.0
    num_chunks: int = 0
    gaps: array[float] = field(default_factory=lambda: array("d"))
    error: str | None = None


class Connections:
    """The connections of one client process: idle ones are used again, the newest first."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[ClientConnection] = []

    async def exchange(
        self, request: bytes, timeout_s: float, times: EventTimes | None = None
    ) -> Exchange:
        """Send a request and read its reply; never raises for what server and network do.

        An idle connection that the server had closed meanwhile is no error: the request is sent
        once more.

        Args:
            times: takes the events of a reply that is a stream.
        """
        sent = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await self._send(request, times)
        except TimeoutError:
            return _failed(sent, f"no reply within {timeout_s:g} s")
        except (ConnectionLostError, OSError) as error:
            return _failed(sent, reason(error))
        return _measured(sent, status, body, times)

    async def _send(self, request: bytes, times: EventTimes | None) -> tuple[int, bytearray]:
        if idle := self._take_idle():
            try:
                return await self._use(idle, request, times)
            except ConnectionLostError as lost:
                if lost.had_begun:
                    raise
        return await self._use(await self._target.connect(), request, times)

    def _take_idle(self) -> ClientConnection | None:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return None

    async def _use(
        self, connection: ClientConnection, request: bytes, times: EventTimes | None
    ) -> tuple[int, bytearray]:
        try:
            status = await connection.send(request, times)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        else:
            connection.close()
        return status, connection.body

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _failed(sent: float, error: str) -> Exchange:
    return Exchange(sent_s=sent, seconds=time.monotonic() - sent, error=one_line(error))


def _measured(sent: float, status: int, body: bytearray, times: EventTimes | None) -> Exchange:
    """The exchange of a reply that has ended, of a stream where `times` is not None."""
    if status != 200:
        reason = error_message(body) or body.decode(errors="replace") or "no reason given"
        return _failed(sent, f"{status}: {reason}")
    if times is not None and (failure := times.failure):
        return _failed(sent, f"in the stream: {failure}")
    try:
        usage = times.usage if times is not None else usage_of(body)
    except ValueError:
        return _failed(sent, "the reply is not JSON")
    if usage is None:
        return _failed(sent, "the reply has no usage, from which tokens are counted")
    exchange = Exchange(sent_s=sent, seconds=time.monotonic() - sent, **_tokens(usage))
    if times is not None:
        if not times.num_events:
            return _failed(sent, "the stream brought no token")
        exchange.first_token_s = times.first - sent
        exchange.streaming_s = times.last - times.first
        exchange.num_chunks, exchange.gaps = times.num_events, times.gaps
    return exchange


def _tokens(usage: dict[str, Any]) -> dict[str, Any]:
    """Tokens by OpenAI's older names, or by those of its newer endpoints."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return {
        "input_tokens": int(usage.get("prompt_tokens") or usage.get("input_tokens") or 0),
        "output_tokens": int(usage.get("completion_tokens") or usage.get("output_tokens") or 0),
        "cached_tokens": details.get("cached_tokens"),
    }
