"""A chain of calls of the package `llm`, plain and streamed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from toolbox import add, arguments, multiply, note, report

base_url, model, question = arguments()
folder = Path.cwd() / "llm"
folder.mkdir()
os.environ |= {"LLM_USER_PATH": str(folder)}
named = {"model_id": "chats", "api_base": base_url, "model_name": model, "supports_tools": True}
# JSON is YAML.
(folder / "extra-openai-models.yaml").write_text(json.dumps([named]))

import llm  # noqa: E402  reads the folder

for streams in (False, True):
    chain = llm.get_model("chats").chain(
        question, tools=[add, multiply], stream=streams, options={"temperature": 0}, key="none"
    )
    note(f"chat{', a stream' * streams}", list(chain.responses())[-1].text())
report()
