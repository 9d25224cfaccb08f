"""What a teacher says of a prompt, over HTTP, is what transformers computes in float64.

Lists of ids for each position, whole vocabularies, every mode at the request's temperature, packed
in each dtype, at once and part by part.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from tests.serving.process import Server, serve

VOCAB, LENGTH, WIDTH = 8192, 150, 7
TOLERANCE = {"float32": 1e-4, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Float32 sums in other orders, 1e-4 * max(1, |value|); else half a unit of the last place."""
PROMPT = np.random.default_rng(5).integers(1, 8000, LENGTH).tolist()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Steps of 64 tokens: prompts are split."""
    with serve(
        "--max-num-batched-tokens", "64", "--max-num-seqs", "16", "--max-logprobs", "-1"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    """Float64 [LENGTH - 1, VOCAB], before each token of the prompt but the first."""
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float64).eval()
    with torch.inference_mode():
        found: np.ndarray = model(torch.tensor([PROMPT])).logits[0, :-1].numpy()
    return found


def unpacked(part: dict[str, Any]) -> np.ndarray:
    data, name = base64.b64decode(part["data"]), part["dtype"]
    if name == "bfloat16":
        wide = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(part["shape"])
    return np.frombuffer(data, dtype=name).reshape(part["shape"])


def table_of(logits: np.ndarray, body: dict[str, Any]) -> np.ndarray:
    """What a body's mode reports of the whole vocabulary."""
    mode = body.get("logprobs_mode", "raw_logprobs")
    values = logits / (body["temperature"] if mode.startswith("processed") else 1.0)
    if mode.endswith("logits"):
        return np.asarray(values)
    sums: np.ndarray = np.logaddexp.reduce(values, axis=1, keepdims=True)
    return np.asarray(values - sums)


def check(values: np.ndarray, wanted: np.ndarray, dtype: str = "float32") -> None:
    bound = TOLERANCE["float32"] + (TOLERANCE[dtype] if dtype != "float32" else 0)
    finite = np.isfinite(wanted)
    assert (np.isneginf(values) == ~finite).all()
    error = np.abs(values[finite] - wanted[finite]) / np.maximum(1, np.abs(wanted[finite]))
    assert error.max() < bound


def ask(server: Server, **body: Any) -> httpx.Response:
    base = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0.7, "logprobs_format": "packed"}
    return httpx.post(f"{server.url}/v1/completions", json={**base, **body}, timeout=120)


MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_a_list_of_ids_for_each_position(
    server: Server, logits: np.ndarray, mode: str, dtype: str
) -> None:
    lists = np.random.default_rng(7).integers(0, VOCAB, (LENGTH - 1, WIDTH))
    lists[5, 3:] = -1
    given = [row.tolist() for row in lists]
    given[5] = given[5][:3]
    fields = {"logprobs_mode": mode, "prompt_logprob_token_ids": given, "logprobs_dtype": dtype}
    found = ask(server, **fields).json()["choices"][0]["prompt_logprob_token_ids"]
    assert found["start"] == 1
    assert (unpacked(found["token_ids"]) == lists).all()
    table = table_of(logits, {"temperature": 0.7, "logprobs_mode": mode})
    wanted = np.take_along_axis(table, np.maximum(lists, 0), axis=1)
    check(unpacked(found["logprobs"]), np.where(lists < 0, -np.inf, wanted), dtype)


def test_whole_vocabularies_and_streams_part_by_part(server: Server, logits: np.ndarray) -> None:
    start = 20
    fields = {"prompt_logprobs": -1, "prompt_logprob_start": start}
    whole = ask(server, **fields).json()["choices"][0]["prompt_logprobs"]
    body = ask(server, stream=True, prompt_logprob_token_ids=[3, 9], **fields).text
    events = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    parts = [choice["prompt_logprobs"] for choice in choices if "prompt_logprobs" in choice]
    assert len(parts) > 1, "the prompt takes several steps"
    assert [part["start"] for part in parts] == sorted(part["start"] for part in parts)
    assert parts[0]["start"] == start
    for name in ("top_token_ids", "top_logprobs", "token_logprobs", "ranks"):
        joined = np.concatenate([unpacked(part[name]) for part in parts])
        assert (joined == unpacked(whole[name])).all()
    ids, values = unpacked(whole["top_token_ids"]), unpacked(whole["top_logprobs"])
    table = table_of(logits, {"temperature": 0.7})[start - 1 :]
    assert (np.sort(ids, axis=1) == np.arange(VOCAB)).all()
    check(values, np.take_along_axis(table, ids, axis=1))
    listed = [choice["prompt_logprob_token_ids"] for choice in choices[: len(parts)]]
    explicit = np.concatenate([unpacked(each["logprobs"]) for each in listed])
    check(explicit, table[:, [3, 9]])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_logprob_token_ids": [[1]] * 3}, "must hold 149 lists, .* got 3"),
        ({"prompt_logprob_token_ids": [[1], 2]}, "lists alone, or ids alone, got 2"),
        ({"prompt_logprob_token_ids": [[-2]] * 149}, r"ids in \[0, 2147483647\], got -2"),
        ({"prompt_logprob_token_ids": [[8192]] * 149}, "holds id 8192"),
        ({"prompt_logprob_token_ids": [[1] * 1025] * 149}, "1 to 1024 ids a position, got 1025"),
        (
            {"logprobs_format": "json", "logprobs_dtype": "float16"},
            'needs logprobs_format "packed"',
        ),
        ({"prompt": [PROMPT, PROMPT], "prompt_logprob_token_ids": [[1]] * 149}, "got 2 prompts"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    server: Server, fields: dict[str, Any], words: str
) -> None:
    reply = ask(server, **fields)
    assert reply.status_code == 400
    assert re.search(words, reply.json()["error"]["message"]), reply.text
