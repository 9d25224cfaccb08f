"""Calls of the package `llm`, whose models of other servers are in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from asked import arguments, report
from structured import STRUCTURED_TOKENS, Answer, checked

base_url, model, prompt, max_tokens = arguments()
folder = Path.cwd() / "llm"
folder.mkdir()
os.environ |= {"LLM_USER_PATH": str(folder)}
shared = {"api_base": base_url, "model_name": model}
models = [
    {"model_id": "chats", "supports_schema": True, **shared},
    {"model_id": "completes", "completion": True, **shared},
]
# JSON is YAML.
(folder / "extra-openai-models.yaml").write_text(json.dumps(models))

import llm  # noqa: E402  reads the folder

texts = {}
for kind, name in {"chat": "chats", "completion": "completes"}.items():
    named = llm.get_model(name)
    options = {"temperature": 0, "max_tokens": max_tokens, "key": "none"}
    texts[kind] = named.prompt(prompt, stream=False, **options).text()
    texts[f"{kind} of a stream"] = "".join(named.prompt(prompt, stream=True, **options))
structured = llm.get_model("chats").prompt(
    prompt, schema=Answer, temperature=0, max_tokens=STRUCTURED_TOKENS, key="none"
)
texts["structured"] = checked(structured.text())
report(texts)
