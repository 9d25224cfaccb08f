"""A load of mixed requests, and what came of each."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

MODEL = "tailrace-demo"


@dataclass
class Outcome:
    """What a client saw of one request.

    Attributes:
        status: of the reply; 0 where there was none.
        ended: the reply or the stream came to its proper end.
        num_bytes: of the reply's body.
        errors: codes of error events within a stream.
    """

    path: str
    status: int = 0
    ended: bool = False
    num_bytes: int = 0
    errors: tuple[str, ...] = ()


def mixed(count: int, seed: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies: completions, chats, Responses, Messages and scoring, half as streams."""
    rng = random.Random(seed)
    found: list[tuple[str, dict[str, Any]]] = []
    for i in range(count):
        words = f"def f{i % 7}(x): " + "y = x + 1; " * rng.randrange(1, 12)
        length, stream = rng.randrange(8, 40), i % 2 == 0
        turns = [{"role": "user", "content": words}]
        shared = {"model": MODEL, "stream": stream}
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"prompt": words, "max_tokens": length, "logprobs": 2, **shared}),
            ("/v1/completions", {"prompt": words, "max_tokens": length, "n": 2, **shared}),
            ("/v1/chat/completions", {"messages": turns, "max_tokens": length, **shared}),
            ("/v1/responses", {"input": words, "max_output_tokens": length, **shared}),
            ("/v1/messages", {"messages": turns, "max_tokens": length, **shared}),
            (
                "/v1/score",
                {"query": words, "items": [" a", " b"], "label_token_ids": [5, 9]},
            ),
        ]
        found.append(kinds[rng.randrange(len(kinds))])
    return found


async def send(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Outcome:
    """Send one request and read its reply to the end."""
    outcome, raw = Outcome(path), b""
    try:
        async with client.stream("POST", path, json=body) as reply:
            outcome.status = reply.status_code
            async for piece in reply.aiter_bytes():
                raw += piece
                outcome.num_bytes = len(raw)
        outcome.ended = True
    except httpx.HTTPError:
        return outcome
    if body.get("stream") and outcome.status == 200:
        lines = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        outcome.errors = tuple(code for event in events if (code := _error(event)) is not None)
    return outcome


def _error(event: dict[str, Any]) -> str | None:
    """What an error event of any of the streams says; None for other events."""
    if "error" in event and event["error"] is not None:
        return str(event["error"].get("code") or event["error"].get("type"))
    if event.get("type") == "response.failed":
        return str(event["response"]["error"]["code"])
    return None


async def send_all(
    url: str,
    asked: list[tuple[str, dict[str, Any]]],
    concurrency: int,
    on_done: Callable[[int], None] = lambda count: None,
) -> list[Outcome]:
    """Send requests, so many at once; `on_done` hears how many have ended."""
    limit, num_done = asyncio.Semaphore(concurrency), 0

    async def one(path: str, body: dict[str, Any]) -> Outcome:
        nonlocal num_done
        async with limit:
            outcome = await send(client, path, body)
        num_done += 1
        on_done(num_done)
        return outcome

    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        return list(await asyncio.gather(*(one(path, body) for path, body in asked)))


@contextmanager
def loading(url: str) -> Iterator[list[Outcome]]:
    """Send mixed requests, eight at once, while the block runs; gives what came of them."""
    done, found = threading.Event(), list[Outcome]()

    def load() -> None:
        seed = 100
        while not done.is_set():
            seed += 1
            found.extend(asyncio.run(send_all(url, mixed(24, seed), concurrency=8)))

    loader = threading.Thread(target=load)
    loader.start()
    try:
        yield found
    finally:
        done.set()
        loader.join()
