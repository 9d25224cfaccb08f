"""Bodies that no client should send: valid ones of every route, each changed in some places."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

MODEL = "tailrace-demo"
_CHAT = [{"role": "user", "content": "a"}]
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
_ASKED = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
_TOOL = {"type": "function", "function": {"name": "look_up", "parameters": _PARAMETERS}}
_CALL = {"type": "function", "id": "c", "function": {"name": "look_up", "arguments": "{}"}}

VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": ["a", "b"],
        "max_tokens": 2,
        "logprobs": 2,
        "stop": ["x"],
        "seed": 1,
        "logit_bias": {"5": 1.5},
        "stream": True,
        "stream_options": {"include_usage": True},
        "structured_outputs": {"regex": "[ab]+"},
    },
    "/v1/chat/completions": {
        "messages": [
            *_CHAT,
            {"role": "assistant", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "b"}]},
        ],
        "max_tokens": 2,
        "tools": [_TOOL],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "chat_template_kwargs": {"enable_thinking": False},
        "top_logprobs": 2,
        "logprobs": True,
    },
    "/v1/chat/completions/render": {"messages": _CHAT, "max_tokens": 2},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "max_output_tokens": 2,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": _PARAMETERS}},
        "tools": [{"type": "function", "name": "look_up", "parameters": _PARAMETERS}],
        "reasoning": {"effort": "low"},
    },
    "/v1/responses/input_tokens": {"input": "a", "instructions": "b"},
    "/v1/messages": {
        "model": MODEL,
        "max_tokens": 2,
        "system": [{"type": "text", "text": "a"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "tools": [{"name": "look_up", "input_schema": _PARAMETERS}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "/v1/messages/count_tokens": {"model": MODEL, "messages": _CHAT},
    "/inference/v1/generate": {
        "token_ids": [5, 6],
        "sampling_params": {"max_tokens": 2, "logprobs": 2, "stop_token_ids": [7]},
    },
    "/generate": {
        "text": ["a", "b"],
        "sampling_params": {"max_new_tokens": 2, "regex": "[ab]+", "stop": ["x"]},
        "return_logprob": True,
        "top_logprobs_num": 2,
    },
    "/generative_scoring": {"query": [7], "items": [[5], [5, 6]], "label_token_ids": [5, 6]},
    "/v1/score": {"query": "a", "items": ["b", "c"], "labels": ["d", "e"]},
    "/v1/decisions": {
        "model": MODEL,
        "input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": [1]}}]}],
        "questions": [_ASKED, {"type": "predicate", "instructions": "Is it?"}],
        "permute": 2,
    },
    "/v1/systemone": {
        "model": MODEL,
        "state": {"a": [1, None]},
        "questions": {"q": {"type": "choice", "criteria": {"a": None, "b": "c"}}},
    },
    "/v1/systemone/permute": {
        "request": {
            "model": MODEL,
            "state": "a",
            "questions": {"q": {"type": "score", "criteria": ["low", "high"]}},
        },
        "question": "q",
        "n_perm": 2,
    },
    "/v1/rerank": {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "base64"},
    "/invocations": {"prompt": "a", "max_tokens": 2},
    "/tokenize": {"messages": _CHAT, "return_token_strs": True},
    "/detokenize": {"tokens": [5, 6]},
}
"""A body of every route that reads one and changes nothing of the server."""
STEERING: dict[str, dict[str, Any]] = {
    "/abort_requests": {"request_ids": ["a"]},
    "/abort_request": {"rid": "a"},
    "/start_weight_update": {"is_checkpoint_format": True},
    "/update_weights": {"update_info": {"path": "/nowhere"}},
    "/finish_weight_update": {},
    "/update_weight_version": {"new_version": "1"},
    "/weight_checker": {"action": "checksum"},
    "/weights_checker": {"action": "checksum"},
    "/begin_weight_update": {},
    "/end_weight_update": {},
    "/init_weight_transfer_engine": {"init_info": {"master_address": "localhost"}},
    "/update_weights_from_disk": {"model_path": "/nowhere"},
    "/update_weights_from_tensor": {"serialized_named_tensors": ["YQ=="]},
    "/update_weights_from_distributed": {"names": ["a"], "dtypes": ["float32"], "shapes": [[1]]},
    "/get_weights_by_name": {"name": "a", "truncate_size": 2},
    "/resume_memory_occupation": {"tags": ["weights"]},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "/nowhere"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/load_lora_adapter": {"lora_name": "a", "lora_path": "/nowhere"},
    "/load_lora_adapter_from_tensors": {
        "lora_name": "a",
        "config_dict": {"r": 1, "target_modules": ["q_proj"]},
        "serialized_tensors": "YQ==",
    },
    "/unload_lora_adapter": {"lora_name": "a"},
}
"""The same of routes by which trainers change the server."""

_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 255, 2**31, 2**63, -(2**63) - 1, 10**40, 1e-300, 1e308),
    *("", " ", "a", "\0", "\ud800", "\U0001f600", "a" * 5000, "{", "[", "(?P<", "\\", "None", "1"),
    *([], {}, [[]], [None], [{}], {"": None}, {"type": "text"}, {"type": 5}, {"$ref": "#"}),
    *([1] * 300, ["a"] * 300, [[5]] * 50, {str(i): i for i in range(300)}, float("nan")),
    *(float("inf"), [True, 1, "a"], {"type": "object", "properties": {"a": {"$ref": "#"}}}),
]


def nested(depth: int) -> Any:
    """Lists and objects inside one another."""
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def changed_bodies(valid: dict[str, Any], seed: int, count: int) -> Iterator[bytes]:
    """So many bodies, each unlike the valid one in some places."""
    rng = random.Random(seed)
    for _ in range(count):
        body = copy.deepcopy(valid)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _change(body, rng)
        raw = bytearray(json.dumps(body).encode())
        if rng.random() < 0.1:
            _damage(raw, rng)
        yield bytes(raw)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a value, with each of its keys or indices."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [each for key in keys for each in _places(value[key])]


def _change(body: dict[str, Any], rng: random.Random) -> None:
    places = _places(body)
    if not places:
        body["a"] = copy.deepcopy(rng.choice(_ODD))
        return
    container, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        name = rng.choice(("a", "", "type", "\ud800", "name", "schema"))
        container[name] = copy.deepcopy(rng.choice(_ODD))
    elif kind == 2:
        container[key] = nested(rng.choice((5, 40, 200)))
    elif kind == 3:
        other, name = rng.choice(places)
        container[key] = copy.deepcopy(other.get(name)) if isinstance(other, dict) else [5, "a"]
    else:
        container[key] = copy.deepcopy(rng.choice(_ODD))


def _damage(raw: bytearray, rng: random.Random) -> None:
    """Cut the end, or write bytes that are not there in JSON."""
    at = rng.randrange(len(raw))
    if rng.random() < 0.5:
        del raw[at:]
    else:
        raw[at:at] = rng.choice(
            (b"\xff", b"\0", b"\xed\xa0\x80", b"}", b'"', b",,", b"1e999", b"[" * 9999)
        )
