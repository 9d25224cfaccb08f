"""A server asked for the logprobs of sequences, alone and beside each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from engine.arrays import Float64Array
from engine.errors import ConfigError
from server.compare.records import TrainerSequence
from server.remote import Remote, RemoteReply

AT_ONCE = 16
"""Sequences that are asked for together."""


class LogprobServer:
    """A server that scores token ids, as this one does.

    Args:
        temperature: values are those of logits divided by it.
    """

    def __init__(self, remote: Remote, model: str | None, temperature: float) -> None:
        self._remote = remote
        self._model = model
        self._temperature = temperature

    def about(self) -> dict[str, Any]:
        """What `/server_info` says; empty where the server has none."""
        reply = self._remote.get("/server_info")
        about = reply.json() if reply.status == 200 else None
        return about if isinstance(about, dict) else {}

    def logprobs(self, sequence: TrainerSequence) -> Float64Array:
        """The values of the sequence's positions; raises `ConfigError`."""
        params: dict[str, Any] = {
            "max_tokens": 0,
            "prompt_logprobs": 0,
            "prompt_logprob_start": sequence.first,
            "logprobs_mode": "raw_logprobs",
        }
        if self._temperature != 1.0:
            params |= {"temperature": self._temperature, "logprobs_mode": "processed_logprobs"}
        end = sequence.first + len(sequence.logprobs)
        body = {"token_ids": sequence.token_ids[:end], "sampling_params": params}
        if self._model is not None:
            body["model"] = self._model
        reply = self._remote.post("/inference/v1/generate", body)
        return np.array([_actual(each) for each in _prompt(reply)[sequence.first :]])

    def together(self, sequences: list[TrainerSequence]) -> list[Float64Array]:
        """The same of many, beside each other."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(self.logprobs, sequences))


def _prompt(reply: RemoteReply) -> list[Any]:
    body = reply.json()
    if reply.status != 200 or not isinstance(body, dict):
        error = body.get("error") if isinstance(body, dict) else None
        why = error.get("message") if isinstance(error, dict) else reply.body[:200].decode()
        raise ConfigError(f"--base-url: the server answers {reply.status}: {why}")
    found: list[Any] = body.get("prompt_logprobs") or []
    return found


def _actual(entry: dict[str, dict[str, Any]]) -> float:
    """The value of the position's own token, which comes first."""
    return float(next(iter(entry.values()))["logprob"])
