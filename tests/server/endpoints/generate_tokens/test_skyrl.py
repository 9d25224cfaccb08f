"""Generation as SkyRL's client asks for it where it replays routes, and how it reads them."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from server.endpoints.generate_tokens.reply_schema import SkyrlGenerateReply
from tests.server.endpoints.generate_tokens.routed import PROMPT, wanted_routes, with_routes


def unpacked(payload: Any) -> Any:
    """Routed experts by the rules of SkyRL's client, which knows the narrowest type alone."""
    assert isinstance(payload, dict)
    data, shape = base64.b64decode(payload["data"], validate=True), tuple(payload["shape"])
    dtype = np.dtype({"uint8": "u1", "int16": "<i2", "int32": "<i4"}[payload["dtype"]])
    assert len(shape) == 3
    assert len(data) == math.prod(shape) * dtype.itemsize
    ids = np.frombuffer(data, dtype=dtype).reshape(shape)
    narrowest = "uint8" if ids.max() < 256 else "int16" if ids.max() < 1 << 15 else "int32"
    assert payload["dtype"] == narrowest
    return ids


async def test_routed_experts() -> None:
    params = {"max_tokens": 3, "logprobs": 0}
    body = {"sampling_params": params, "model": "fake", "token_ids": PROMPT, "cache_salt": "v4"}
    async with with_routes() as site:
        reply = await site.client.post("/skyrl/v1/generate", json=body)
    assert reply.status_code == 200, reply.text
    SkyrlGenerateReply.model_validate(reply.json())
    (choice,) = reply.json()["choices"]
    assert len(choice["token_ids"]) == 3
    assert choice["finish_reason"] == "length"
    assert all(math.isfinite(each["logprob"]) for each in choice["logprobs"]["content"])
    assert np.array_equal(unpacked(choice["routed_experts"]), wanted_routes(3).ids)
