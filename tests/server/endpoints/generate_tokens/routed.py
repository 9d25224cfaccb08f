"""A server whose fake engine keeps which experts tokens took."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np

from engine.messages.request import Request, RoutesParams
from sampling.params import SamplingParams
from tests.fakes import FakeEngine, Script, echo, routes_of
from tests.server.conftest import Site, in_process

PROMPT = list(b"hello")


@contextlib.asynccontextmanager
async def with_routes(script: Script = echo, **settings: Any) -> AsyncIterator[Site]:
    """A server whose model has experts, and keeps which of them tokens took."""
    engine = FakeEngine(script)
    engine.info = msgspec.structs.replace(engine.info, num_routed=4)
    async with in_process(engine, **settings) as site:
        yield site


def wanted_routes(num_tokens: int, start: int = 0) -> Any:
    """Of the fake's prompt and so many tokens, but the last."""
    engine = FakeEngine()
    asked = Request(
        handle=engine.new_handle(),
        prompt_token_ids=np.array(PROMPT, dtype=np.int32),
        params=SamplingParams(),
        max_tokens=1,
        routes=RoutesParams(start=start, has_weights=True),
    )
    return routes_of(asked, 0, num_tokens)
