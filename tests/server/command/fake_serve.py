"""`tailrace serve` in a process of its own, over the fake engine. Standard input has levers."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import server.command.fronts.front as front
import server.command.serve as command
from server import cli
from tests.fakes import FakeEngine, byte_tokenizer


class _Client:
    @classmethod
    async def start(cls, *_: Any, **__: Any) -> FakeEngine:
        sys.stderr.write("starting\n")
        sys.stderr.flush()
        await asyncio.sleep(float(os.environ.get("FAKE_START_S", "0")))
        engine = FakeEngine(step_s=float(os.environ.get("FAKE_STEP_S", "0.01")))

        def on_line() -> None:
            match sys.stdin.readline().strip():
                case "die":
                    engine.die("killed by a test")
                case "hurry":
                    engine.step_s = 0.0

        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), on_line)
        return engine


if __name__ == "__main__":
    fakes = (
        (command, "EngineClient", _Client),
        (command, "ENGINE_LOST_S", float(os.environ.get("FAKE_LOST_S", "5"))),
        (front, "load_tokenizer", lambda *_, **__: byte_tokenizer()),
    )
    for module, name, fake in fakes:
        setattr(module, name, fake)
    cli.run()
