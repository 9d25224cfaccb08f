"""What a chat costs the server process more than a completion of the same prompt.

    python -m benchmarks.bench_chat

The conversation has 10 messages. Processor time of one request each, by an engine that answers at
once, without sockets: a chat, the same with a prompt that is known, and a completion of that
prompt's ids. The second less the third is what is beyond rendering and tokenising: a longer body to
parse, the reply's shape, and the way to the thread that renders and back, which is told apart.

Calls of all kinds take turns, a few at a time, and of each kind the twentieth part that took least
stands: that is what the code takes, also on a machine that has other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import uvloop
from starlette.types import Message

from demo import MODEL_FOLDER
from engine.contracts.control import AnyCommand, ControlReply, EngineState
from engine.contracts.info import EngineInfo
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish, StepOutput
from engine.stats import EngineStats
from engine.submission import Submission, deliver_output
from server.app import create_app
from server.config import ServerConfig
from server.context import Context
from server.conversation.template import RenderedPrompt
from server.conversation.template_rendering import Conversation
from server.engine_metrics import NO_STATS
from server.text.tokenizer import load_tokenizer

NUM_MESSAGES, NUM_REQUESTS, ROUNDS = 10, 10, 400
QUANTILE = 0.05
LIMIT_US = 60.0
WORDS = "The function reads a file, takes each line apart and counts how often each word is there. "


class InstantEngine:
    """Ends every choice with one token, in the next turn of the event loop."""

    def __init__(self, vocab_size: int) -> None:
        self.stats: EngineStats | None = None
        self.state = EngineState()
        self.info = EngineInfo(
            vocab_size=vocab_size,
            max_model_len=2048,
            eos_token_ids=(0,),
            max_rows=256,
            num_blocks=1000,
            block_size=16,
            dtype="float32",
            device="cpu",
        )
        self._last_handle = 0

    def new_handle(self) -> int:
        """See `EngineHandle`, as for what follows."""
        self._last_handle += 1
        return self._last_handle

    async def control(self, command: AnyCommand) -> ControlReply:
        """Follow no command."""
        return ControlReply(handle=0, state=self.state)

    def submit(self, request: Request) -> Submission:
        """Answer in the next turn."""
        submission = Submission(request.handle, request.n)
        output = StepOutput(
            handles=np.array([request.handle], dtype=np.int64),
            choices=np.zeros(1, dtype=np.int32),
            num_new=np.ones(1, dtype=np.int32),
            finish=np.array([Finish.LENGTH], dtype=np.uint8),
            num_cached=np.zeros(1, dtype=np.int32),
            token_ids=np.array([100], dtype=np.int32),
            stats=NO_STATS,
        )
        held = {request.handle: submission}
        asyncio.get_running_loop().call_soon(deliver_output, output, held)
        return submission

    def score(self, request: ScoringRequest) -> Submission:
        """Not asked here."""
        raise NotImplementedError

    def abort(self, handle: int, choice: int = -1) -> None:
        """Nothing runs."""

    def failure(self) -> str | None:
        """None."""
        return None

    async def close(self) -> None:
        """Nothing is open."""


async def call(app: Any, path: str, raw: bytes) -> bytes:
    """The body of a reply to a POST."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    parts: list[bytes] = []
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return b"".join(parts)


async def processor_us(work: Callable[[], Awaitable[object]]) -> float:
    """Processor time of the whole process for one of many calls, in microseconds."""
    await work()  # the code of another kind ran before
    began = time.process_time()
    for _ in range(NUM_REQUESTS):
        await work()
    return (time.process_time() - began) / NUM_REQUESTS * 1e6


async def on_the_loop(_: float, function: Callable[..., Any], *args: Any) -> Any:
    """What `BoundedThread.run` does, without the thread."""
    return function(*args)


async def measure() -> None:
    """Measure in rounds, each of all kinds, and print."""
    tokenizer = load_tokenizer(str(MODEL_FOLDER))
    config = ServerConfig(model_names=("demo",), access_log=False)
    app = create_app(InstantEngine(len(tokenizer.texts)), tokenizer, config)
    context: Context = app.state.context
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": WORDS * 2} for i in range(NUM_MESSAGES)
    ]
    shared = {"model": "demo", "max_tokens": 1, "seed": 1}
    template = context.template
    source, conversation = template.source(with_tools=False), Conversation(messages)
    prompt = await template.encode(source, conversation, tokenizer)
    ids = prompt.token_ids.tolist()
    chat = orjson.dumps({"messages": messages, **shared})
    completion = orjson.dumps({"prompt": ids, **shared})

    async def known_prompt(*_: object, **__: object) -> RenderedPrompt:
        return prompt

    known = patch.object(template, "encode", known_prompt)
    thread = patch.object(template._thread, "run", on_the_loop)
    whole = partial(call, app, "/v1/chat/completions", chat)
    kinds: dict[str, tuple[Callable[[], Awaitable[object]], tuple[Any, ...]]] = {
        "chat": (whole, ()),
        "chat of a known prompt": (whole, (known,)),
        "the same on the loop": (whole, (known, thread)),
        "completion of its ids": (partial(call, app, "/v1/completions", completion), ()),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, (work, patches) in kinds.items():
            with contextlib.ExitStack() as stack:
                for each in patches:
                    stack.enter_context(each)
                found[name].append(await processor_us(work))
    least = {name: float(np.quantile(all_us, QUANTILE)) for name, all_us in found.items()}
    for name, us in least.items():
        print(f"{name:26} {us:7.1f} us")
    _, threaded, inline, plain = least.values()
    print(
        f"{'the difference':26} {inline - plain:7.1f} us, at most {LIMIT_US:g}; {len(ids)} tokens"
    )
    print(f"{'the way of rendering':26} {threaded - inline:7.1f} us, to its thread and back")
    context.close()


if __name__ == "__main__":
    uvloop.run(measure())  # as the server does
