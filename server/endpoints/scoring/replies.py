"""Scores as replies. Nothing here waits; big replies are written in a thread."""

from __future__ import annotations

import time
from itertools import chain
from typing import Any

import numpy as np
import orjson

from engine.arrays import Float32Array
from engine.messages.step_output import ItemScores
from server.endpoints.scoring.prepare import PreparedScoring
from server.scoring.labels import Float64Array
from server.text.json_fragments import MINUS_INFINITY
from server.text.packed import check_finite, packed

_ITEM = b'{"index":%d,"object":"score","score":%b,"label_logprobs":[%b],"other_logprob":%b}'


def generative_scoring_reply(prepared: PreparedScoring, scores: ItemScores) -> bytes:
    """Write a reply of vLLM's shape: one score for each item, that of the first label."""
    logprobs, others = _logprobs(prepared, scores)
    first = _probabilities(prepared, logprobs)[:, 0]
    reply = _head(prepared, scores) | {"object": "list"}
    if prepared.packed:
        reply |= {"data": [], "scores": packed(first), **_packed_logprobs(logprobs, others)}
        return orjson.dumps(reply)
    reply["data"] = _items(first, _shown(logprobs), _shown(others))
    return orjson.dumps(reply)


def _items(first: Float64Array, logprobs: Float32Array, others: Float32Array) -> orjson.Fragment:
    """Write `data` as text: objects for thousands of items would cost more than their digits."""
    scores = _json(first)[1:-1].split(b",")
    label_logprobs = _json(logprobs)[2:-2].split(b"],[")
    other_logprobs = _json(others)[1:-1].split(b",")
    rows = zip(range(len(scores)), scores, label_logprobs, other_logprobs, strict=True)
    items = b",".join([_ITEM] * len(scores)) % tuple(chain.from_iterable(rows))
    return orjson.Fragment(b"[" + items + b"]")


def _json(values: Float64Array | Float32Array) -> bytes:
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


def score_reply(prepared: PreparedScoring, scores: ItemScores) -> bytes:
    """Write a reply of SGLang's shape: a list of scores for each item, one for each label."""
    logprobs, others = _logprobs(prepared, scores)
    probabilities = _probabilities(prepared, logprobs)
    reply = _head(prepared, scores) | {"object": "scoring"}
    if prepared.packed:
        reply |= {"scores": packed(probabilities), **_packed_logprobs(logprobs, others)}
    else:
        reply |= {
            "scores": probabilities,
            "label_logprobs": _shown(logprobs),
            "other_logprob": _shown(others),
        }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def pair_scores_reply(
    scores: Float64Array, reply_id: str, model: str, usage: dict[str, Any]
) -> dict[str, Any]:
    """Make a reply of vLLM's shape to pairs."""
    return {
        "id": reply_id,
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(scores.tolist())
        ],
        "usage": usage,
    }


def _logprobs(prepared: PreparedScoring, scores: ItemScores) -> tuple[Float64Array, Float64Array]:
    (found,) = prepared.spec.logprobs(scores)
    return found.labels, found.others


def _probabilities(prepared: PreparedScoring, logprobs: Float64Array) -> Float64Array:
    """Probabilities float64 [N, L], among all continuations or shared among the labels."""
    if not prepared.softmax:
        return np.exp(logprobs)
    best = logprobs.max(axis=1, keepdims=True)
    weights = np.exp(logprobs - np.where(np.isneginf(best), 0.0, best))
    total = weights.sum(axis=1, keepdims=True)
    shared: Float64Array = weights / np.where(total > 0, total, 1.0)
    return shared


def _packed_logprobs(logprobs: Float64Array, others: Float64Array) -> dict[str, Any]:
    return {
        "label_logprobs": packed(logprobs.astype(np.float32)),
        "other_logprob": packed(others.astype(np.float32)),
    }


def _shown(values: Float64Array) -> Float32Array:
    """Values as float32, as JSON has them: -inf is -9999."""
    narrow = values.astype(np.float32)
    if check_finite(narrow):
        return narrow
    return np.where(np.isneginf(narrow), np.float32(MINUS_INFINITY), narrow)


def _head(prepared: PreparedScoring, scores: ItemScores) -> dict[str, Any]:
    """Make the fields of both replies. Nothing is generated, so only the prompt is billed."""
    usage = {
        "prompt_tokens": prepared.num_prompt_tokens,
        "completion_tokens": 0,
        "total_tokens": prepared.num_prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": scores.num_cached},
    }
    head = {"id": prepared.reply_id, "created": prepared.created, "model": prepared.model}
    warnings = {"warnings": prepared.warnings} if prepared.warnings else {}
    return {**head, "usage": usage, **warnings}
