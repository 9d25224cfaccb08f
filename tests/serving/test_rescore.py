"""What a generation says of its tokens is what scoring the whole text says of them.

The two read the same tokens through other steps (one token a step beside others, then the prompt in
chunks), so in float32 the logits agree to about 1e-5; values are compared within 1e-4 * max(1,
|value|). In the processed modes temperature, filters and the repetition penalty hold at prompt
positions as they held when the token was drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import MODEL_FOLDER
from tests.serving.process import Server, serve

PROMPTS = ["def main():\n", "import os\nimport sys\n\n\nclass Reader:\n    def ", "x"]
FILTERS = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3}
CASES: list[dict[str, Any]] = [
    {"logprobs_mode": "raw_logprobs"},
    {"logprobs_mode": "raw_logits", **FILTERS},
    {"logprobs_mode": "processed_logprobs", **FILTERS},
    {"logprobs_mode": "processed_logits", **FILTERS, "logit_bias": {"300": 2.0}},
    {"logprobs_mode": "raw_logprobs", "temperature": 0.0},
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Few tokens a step and few blocks, so that chunks and preemptions happen."""
    flags = ["--max-num-batched-tokens", "64", "--max-num-seqs", "24"]
    flags += ["--max-model-len", "256", "--num-gpu-blocks-override", "40"]
    with serve(*flags, ready_s=300.0) as server:
        yield server


def _ask(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=280) as client:
            sent = (client.post("/v1/completions", json=body) for body in bodies)
            replies = await asyncio.gather(*sent)
        assert all(reply.status_code == 200 for reply in replies), replies[0].text
        return [reply.json()["choices"][0] for reply in replies]

    return asyncio.run(ask())


def test_generated_equals_rescored(server: Server) -> None:
    shared = {"logprobs": 3, "logprob_token_ids": [5, 6, 289], "return_token_ids": True}
    generated = [
        {"prompt": prompt, "max_tokens": 60, "seed": i, "ignore_eos": True, **shared, **case}
        for i, case in enumerate(CASES)
        for prompt in PROMPTS
    ]
    first = _ask(server, generated)
    rescored = [
        {
            **body,
            "prompt": choice["prompt_token_ids"] + choice["token_ids"],
            "prompt_logprob_token_ids": shared["logprob_token_ids"],
            "prompt_logprobs": 3,
            "prompt_logprob_start": len(choice["prompt_token_ids"]),
            "echo": True,
            "max_tokens": 0,
        }
        for body, choice in zip(generated, first, strict=True)
    ]
    for was, now, body in zip(first, _ask(server, rescored), rescored, strict=True):
        start, mode = body["prompt_logprob_start"], body["logprobs_mode"]
        old, new = was["logprobs"], now["logprobs"]
        assert (old["mode"], new["mode"]) == (mode, mode)
        assert new["token_logprobs"][:start] == [None] * start
        _close(new["token_logprobs"][start:], old["token_logprobs"])
        _close(now["prompt_logprob_token_ids"]["logprobs"], was["logprob_token_ids"]["logprobs"])
        for value, top in zip(old["token_logprobs"], old["top_logprobs"], strict=True):
            assert value in top.values(), "the chosen value is its entry in the top list, exactly"
    assert server.metrics()[f"tailrace_num_preemptions_total{_LABELS}"] > 0


_LABELS = '{engine="0",model_name="tailrace-demo"}'


def _close(got: Any, want: Any) -> None:
    got, want = np.array(got), np.array(want)
    masked = want == -9999.0
    assert ((got == -9999.0) == masked).mean() > 0.995  # a filter's edge may fall either way
    both = ~masked & (got != -9999.0)
    assert (np.abs(got - want)[both] <= 1e-4 * np.maximum(1, np.abs(want[both]))).all()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprob_token_ids": [-1]}, "logprob_token_ids"),
        ({"logprob_token_ids": [8192]}, "logprob_token_ids"),
        ({"logprob_token_ids": list(range(129))}, "logprob_token_ids"),
        ({"prompt_logprob_token_ids": [8192]}, "prompt_logprob_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "prompt_logprob_start": 99}, "prompt_logprob_start"),
        ({"logprobs_mode": "log"}, "logprobs_mode"),
    ],
)
def test_bad_input_names_the_field(server: Server, body: dict[str, Any], param: str) -> None:
    reply = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", **body}, timeout=120)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)


def test_nothing_is_generated_with_max_tokens_0(server: Server) -> None:
    body = {"prompt": "def main():", "max_tokens": 0, "logprob_token_ids": [5, 6], "logprobs": 2}
    for extra in ({}, {"echo": True}, {"n": 2}):
        reply = httpx.post(f"{server.url}/v1/completions", json=body | extra, timeout=120).json()
        assert reply["usage"]["completion_tokens"] == 0
        for choice in reply["choices"]:
            assert choice["finish_reason"] == "length"
            assert choice["text"] == ("def main():" if "echo" in extra else "")
            assert np.shape(choice["logprob_token_ids"]["logprobs"]) == (1, 2)
            count = 3 if "echo" in extra else 0
            assert len(choice["logprobs"]["token_logprobs"]) == count


def test_requests_of_evaluation_harnesses(server: Server) -> None:
    """Lists of ids, echo, one token drawn; they slice the columns and compare floats exactly."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    pairs = [("import os\n", "import sys\n"), ("def f(", "self):\n"), ("for i in", " zebra")]
    contexts = [tokenizer(context).input_ids for context, _ in pairs]
    wholes = [c + tokenizer(t).input_ids for c, (_, t) in zip(contexts, pairs, strict=True)]
    body = {"prompt": wholes, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/completions", json=body | {"seed": 1234}, timeout=120)
    for whole, context, choice in zip(wholes, contexts, reply.json()["choices"], strict=True):
        with torch.inference_mode():
            table = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        want = table[:-1].gather(1, torch.tensor(whole)[1:, None])[:, 0].numpy()
        logprobs, start = choice["logprobs"], len(context)
        values, tops = logprobs["token_logprobs"], logprobs["top_logprobs"]
        assert len(values) == len(whole) + 1
        assert values[0] is None
        np.testing.assert_allclose(values[start:-1], want[start - 1 :], atol=1e-4)
        is_greedy = all(
            value == max(top.values())
            for value, top in zip(values[start:-1], tops[start:-1], strict=True)
        )
        best = table[start - 1 : -1].argmax(-1).tolist()
        assert is_greedy == (best == whole[start:])
