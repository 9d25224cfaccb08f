"""A server asked for logits: spans of positions, the packed form, and what it may refuse."""

from __future__ import annotations

import base64
from typing import Any, cast

import numpy as np
import orjson
import pytest

from engine.errors import ConfigError
from server.audit import server_logits
from server.audit.server_logits import ServerLogits, adapters_of
from server.remote import Remote, RemoteReply

VOCAB = 5
INFO = {"vocab_size": VOCAB, "max_model_len": 9, "dtype": "float32"}


def packed(array: Any) -> dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def logits_after(tokens: list[int]) -> list[float]:
    return [float(sum(tokens) * 10 + token) for token in range(VOCAB)]


class Scripted:
    """A server whose logits after a text are those of `logits_after`."""

    url = "http://server"

    def __init__(self, refusal: str | None = None, info: Any = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._refusal = refusal
        self._info = INFO if info is None else info

    def get(self, path: str) -> RemoteReply:
        return RemoteReply(200, orjson.dumps(self._info), "application/json")

    def post(self, path: str, body: dict[str, Any]) -> RemoteReply:
        self.bodies.append(body)
        if self._refusal is not None:
            error = {"error": {"message": self._refusal}}
            return RemoteReply(400, orjson.dumps(error), "application/json")
        prompt, start = body["prompt"], body.get("prompt_logprob_start")
        choice: dict[str, Any] = {"logprobs": self._part([prompt])}
        if start is not None:
            texts = [prompt[:i] for i in range(start, len(prompt))]
            choice["prompt_logprobs"] = self._part(texts)
        return RemoteReply(200, orjson.dumps({"choices": [choice]}), "application/json")

    def _part(self, texts: list[list[int]]) -> dict[str, Any]:
        values = np.array([logits_after(text)[::-1] for text in texts], dtype="<f4")
        ids = np.tile(np.arange(VOCAB, dtype="<i4")[::-1], (len(texts), 1))
        return {"top_token_ids": packed(ids), "top_logprobs": packed(values)}


def source(server: Scripted, model: str | None = None) -> ServerLogits:
    return ServerLogits(cast(Remote, server), model)


@pytest.mark.parametrize("most", [VOCAB, 3 * VOCAB, 100 * VOCAB])
def test_each_position_has_the_logits_that_follow_the_tokens_before_it(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_logits, "MOST_VALUES", most)
    server, tokens = Scripted(), [1, 2, 3, 4, 1, 2, 3]
    rows = list(source(server, "m").logits(tokens, 2))
    assert [row.tolist() for row in rows] == [logits_after(tokens[:i]) for i in range(2, 7)]
    assert len(server.bodies) == -(-5 * VOCAB // most)
    # The last position's token is never sent: a text as long as the context can be audited.
    assert all(len(body["prompt"]) < len(tokens) for body in server.bodies)
    assert all(body["model"] == "m" for body in server.bodies)


def test_refusals_say_what_the_server_needs() -> None:
    refusing = Scripted("logprobs must be between 0 and 20, got 5")
    with pytest.raises(ConfigError, match=r"400: logprobs must .* needs --max-logprobs -1"):
        list(source(refusing).logits([1, 2, 3], 1))
    with pytest.raises(ConfigError, match=r"400: out of turn$"):
        list(source(Scripted("out of turn")).logits([1, 2, 3], 1))
    with pytest.raises(ConfigError, match="does not say its vocab_size"):
        source(Scripted(info=[]))
    with pytest.raises(ConfigError, match="does not say its max_model_len"):
        source(Scripted(info={"vocab_size": VOCAB}))


def test_adapters_are_the_models_that_have_a_parent() -> None:
    models = [{"id": "m", "parent": None}, {"id": "sql", "parent": "m"}, {"id": "other"}]
    assert adapters_of(cast(Remote, Scripted(info={"data": models}))) == {"sql"}
    assert adapters_of(cast(Remote, Scripted(info=[]))) == set()
