"""Logits of given tokens by a server that is asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.arrays import Float32Array
from engine.audit.drawn import spread
from engine.errors import ConfigError
from server.remote import Remote
from server.text.packed import unpacked

MOST_VALUES = 2**21
"""Logits asked for at a time: a reply of 22 MiB."""


class ServerLogits:
    """A server of this project, asked for all logits of a text's positions.

    Args:
        remote: the server; raises `ConfigError` where it does not say its vocabulary.
        model: one of its names; None is its first.
    """

    def __init__(self, remote: Remote, model: str | None) -> None:
        reply = remote.get("/server_info")
        info = reply.json()
        if reply.status != 200:
            raise ConfigError(f"{remote.url}/server_info answers {reply.status}: {_message(info)}")
        for name in ("vocab_size", "max_model_len"):
            if not isinstance(info, dict) or name not in info:
                words = f"{remote.url}/server_info does not say its {name}; see --base-url"
                raise ConfigError(words)
        self.vocab_size: int = info["vocab_size"]
        self.max_model_len: int = info["max_model_len"]
        self.dtype: str = info.get("dtype", "")
        self._remote, self._model = remote, model

    def logits(self, token_ids: list[int], start: int) -> Iterator[Float32Array]:
        """Yield them as `engine.audit.drawn.LogitSource` says."""
        size = max(1, MOST_VALUES // self.vocab_size)
        for first in range(start, len(token_ids), size):
            yield from self._some(token_ids, first, min(first + size, len(token_ids)))

    def _some(self, token_ids: list[int], start: int, end: int) -> Iterator[Float32Array]:
        """Those of positions start .. end - 1: the last one's as those of a token to be drawn."""
        body: dict[str, Any] = {
            "prompt": token_ids[: end - 1],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": self.vocab_size,
            "logprobs_mode": "raw_logits",
            "logprobs_format": "packed",
        }
        if self._model is not None:
            body["model"] = self._model
        if end - start > 1:
            body |= {"prompt_logprobs": self.vocab_size, "prompt_logprob_start": start}
        reply = self._remote.post("/v1/completions", body)
        content = reply.json()
        if reply.status != 200 or not isinstance(content, dict):
            raise ConfigError(f"{self._remote.url} answers {reply.status}: {_message(content)}")
        choice = content["choices"][0]
        for part in (choice.get("prompt_logprobs"), choice["logprobs"]):
            if part is not None:
                ids, values = unpacked(part["top_token_ids"]), unpacked(part["top_logprobs"])
                yield from spread(ids, values, self.vocab_size)


def adapters_of(remote: Remote) -> set[str]:
    """Names of a server's adapters: the models that it lists with a parent."""
    content = remote.get("/v1/models").json()
    listed = content.get("data") if isinstance(content, dict) else None
    models = [each for each in listed or () if isinstance(each, dict)]
    return {str(each["id"]) for each in models if each.get("parent") is not None}


def _message(content: Any) -> str:
    error = content.get("error") if isinstance(content, dict) else None
    message = str(error.get("message")) if isinstance(error, dict) else "no reason given"
    hint = " (the server needs --max-logprobs -1)" if "logprobs" in message else ""
    return message + hint
