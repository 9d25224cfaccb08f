"""Adapters of the demo model in a real server: at start, at run time, on every kind of endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from tests.engine.adapters.peft import write_adapter
from tests.serving.process import Server, serve

PROMPT = [40, 41, 42, 43, 44, 45, 46, 47]


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


@torch.inference_mode()
def greedy(model: Any, num_tokens: int = 6) -> list[int]:
    ids = list(PROMPT)
    for _ in range(num_tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def drawn(server: Server, model: str, **fields: Any) -> list[int]:
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    reply = post(server, "/v1/completions", {"model": model, **body, "ignore_eos": True, **fields})
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    token_ids: list[int] = reply.json()["choices"][0]["token_ids"]
    return token_ids


def test_adapters_of_a_server(tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER).float().eval()
    merged = {
        name: write_adapter(base, tmp_path / name, seed, rank=4, lora_alpha=16)
        for seed, name in enumerate(("one", "two"))
    }
    wanted = {name: greedy(model) for name, model in merged.items()}
    wanted["tailrace-demo"] = greedy(base)
    assert len({str(tokens) for tokens in wanted.values()}) == 3, "they draw different tokens"
    flags = ["--enable-lora", "--lora-modules", f"one={tmp_path / 'one'}"]
    with serve(*flags, "--lora-root", str(tmp_path), "--max-loras", "2") as server:
        assert drawn(server, "one") == wanted["one"]
        assert drawn(server, "tailrace-demo") == wanted["tailrace-demo"]
        new: dict[str, Any] = {"lora_name": "new", "lora_path": str(tmp_path / "two")}
        assert post(server, "/v1/load_lora_adapter", new).status_code == 200
        assert drawn(server, "new") == wanted["two"]
        again = post(server, "/v1/load_lora_adapter", new)
        assert (again.status_code, again.json()["error"]["code"]) == (400, "adapter_exists")
        replaced = new | {"lora_path": str(tmp_path / "one"), "load_inplace": True}
        assert post(server, "/v1/load_lora_adapter", replaced).status_code == 200
        assert drawn(server, "new") == wanted["one"]
        names = [card["id"] for card in server.get("/v1/models").json()["data"]]
        assert names == ["tailrace-demo", "one", "new"]
        _check_other_endpoints(server)
        missing = post(server, "/v1/load_lora_adapter", new | {"lora_name": "x", "lora_path": "y"})
        assert missing.status_code == 400
        gone = {"lora_name": "new"}
        assert post(server, "/v1/unload_lora_adapter", gone).status_code == 200
        assert post(server, "/v1/unload_lora_adapter", gone).status_code == 404
        reply = post(server, "/v1/completions", {"model": "new", "prompt": PROMPT})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


def _check_other_endpoints(server: Server) -> None:
    """The base and an adapter answer differently wherever `model` is asked."""
    decision = {"type": "predicate", "name": "q", "instructions": "Is it so?"}
    asked: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "def f(x):"}],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": True,
        },
        "/generative_scoring": {"query": "def f", "items": ["(x)"], "label_token_ids": [40, 41]},
        "/v1/embeddings": {"input": "def f(x):"},
        "/v1/decisions": {"input": "def f(x):", "questions": [decision]},
    }
    for path, body in asked.items():
        replies = [post(server, path, {"model": m, **body}) for m in ("tailrace-demo", "one")]
        assert [reply.status_code for reply in replies] == [200, 200], (path, replies[0].text)
        assert _values(replies[0].json()) != _values(replies[1].json()), path


def _values(reply: dict[str, Any]) -> Any:
    return [reply.get(name) for name in ("choices", "data", "answers")]
