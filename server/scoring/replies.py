"""Scores as reply bodies. Nothing here waits; big replies are written in a thread."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import orjson

from engine.request import Float32Array, ItemScores
from server.scoring.labels import Float64Array
from server.scoring.prepare import PreparedScoring
from server.text.packed import check_finite, packed

MINUS_INFINITY = np.float32(-9999.0)
_ITEM = b'{"index":%d,"object":"score","score":%b,"label_logprobs":[%b],"other_logprob":%b}'


def generative_scoring_reply(job: PreparedScoring, scores: ItemScores) -> bytes:
    """vLLM's shape: a score an item, of the first label."""
    logprobs, others = _logprobs(job, scores)
    first = _probabilities(job, logprobs)[:, 0]
    body = _head(job, scores) | {"object": "list"}
    if job.packed:
        body |= {"data": [], "scores": packed(first), **_packed_logprobs(logprobs, others)}
        return orjson.dumps(body)
    body["data"] = _items(first, _shown(logprobs), _shown(others))
    return orjson.dumps(body)


def _items(first: Float64Array, logprobs: Float32Array, others: Float32Array) -> orjson.Fragment:
    """`data`, put together as text: objects for thousands of items cost more than their digits."""
    scores = _json(first)[1:-1].split(b",")
    label_logprobs = _json(logprobs)[2:-2].split(b"],[")
    other_logprobs = _json(others)[1:-1].split(b",")
    rows = zip(range(len(scores)), scores, label_logprobs, other_logprobs, strict=True)
    items = b",".join([_ITEM] * len(scores)) % tuple(chain.from_iterable(rows))
    return orjson.Fragment(b"[" + items + b"]")


def _json(values: Float64Array | Float32Array) -> bytes:
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


def score_reply(job: PreparedScoring, scores: ItemScores) -> bytes:
    """SGLang's shape: a list of scores an item, one a label."""
    logprobs, others = _logprobs(job, scores)
    probabilities = _probabilities(job, logprobs)
    body = _head(job, scores) | {"object": "scoring"}
    if job.packed:
        body |= {"scores": packed(probabilities), **_packed_logprobs(logprobs, others)}
    else:
        body |= {
            "scores": probabilities,
            "label_logprobs": _shown(logprobs),
            "other_logprob": _shown(others),
        }
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _logprobs(job: PreparedScoring, scores: ItemScores) -> tuple[Float64Array, Float64Array]:
    return job.tree.logprobs(scores.values, scores.others)


def _probabilities(job: PreparedScoring, logprobs: Float64Array) -> Float64Array:
    """float64 [N, L]: of all continuations, or shared among the labels."""
    if not job.softmax:
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
    """float32 as JSON has it: -inf is -9999."""
    narrow = values.astype(np.float32)
    return narrow if check_finite(narrow) else np.where(np.isneginf(narrow), MINUS_INFINITY, narrow)


def _head(job: PreparedScoring, scores: ItemScores) -> dict[str, Any]:
    """What both replies begin with. Nothing is generated, so nothing but the prompt is billed."""
    usage = {
        "prompt_tokens": job.num_prompt_tokens,
        "completion_tokens": 0,
        "total_tokens": job.num_prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": scores.num_cached},
    }
    return {"id": job.reply_id, "created": job.created, "model": job.model, "usage": usage}
