"""Unmodified client packages complete their first calls, and get what anyone gets.

Each is installed into an environment of its own, and a program of `programs/` makes its calls: it
is given the address, the model, a prompt and the number of tokens, and prints the texts it got as a
JSON object. The first word of a text's name says what it must be: the server's own `completion` or
`chat`, or what others of that word are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import MODEL_FOLDER
from tests.clients.environments import node_with, python_with
from tests.clients.programs_run import MODEL, output_of
from tests.serving.process import Server, serve

PROGRAMS = Path(__file__).parent / "programs"
PROMPT = "def fibonacci(n):\n"
MAX_TOKENS = 24
NUM_REQUESTS = 4
PYTHON = {
    "litellm": "litellm",
    "langchain": "langchain-openai",
    "llama_index": "llama-index-llms-openai-like",
    "instructor": "instructor",
    "inspect": "inspect-ai openai",
    "anthropic": "anthropic",
    "huggingface": "huggingface_hub",
    "responses": "openai",
    "outlines": "outlines openai",
    "dspy": "dspy",
    "haystack": "haystack-ai",
    "llm": "llm",
    "chatlas": "chatlas openai",
    "magentic": "magentic",
    "smolagents": "smolagents[openai]",
}
"""Packages by program."""
NODE = {
    "openai": "openai",
    "ai": "ai @ai-sdk/openai @ai-sdk/openai-compatible",
    "ai_providers": "ai @ai-sdk/anthropic @ai-sdk/open-responses",
    "anthropic": "@anthropic-ai/sdk",
    "huggingface": "@huggingface/inference",
    "langchain": "langchain @langchain/openai @langchain/core zod",
    "llama_index": "llamaindex @llamaindex/openai @llamaindex/workflow zod",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def wanted(server: Server) -> dict[str, str]:
    """What the server says by its own account."""
    client = server.client
    completion = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=MAX_TOKENS, temperature=0
    )
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=MAX_TOKENS,
        temperature=0,
    )
    assert chat.choices[0].message.content
    return {"completion": completion.choices[0].text, "chat": chat.choices[0].message.content}


def check(output: str, wanted: dict[str, str]) -> None:
    """Compare the texts of a program's last line."""
    texts: dict[str, str] = json.loads(output.splitlines()[-1])
    kinds: dict[str, str] = dict(wanted)
    for name, text in texts.items():
        assert text.strip(), name
        # Some packages strip what they get.
        assert text.strip() == kinds.setdefault(name.split()[0], text).strip(), name


@pytest.mark.parametrize("program", PYTHON)
def test_python(program: str, server: Server, wanted: dict[str, str], tmp_path: Path) -> None:
    python = python_with(*PYTHON[program].split())
    arguments = [f"{server.url}/v1", MODEL, PROMPT, str(MAX_TOKENS)]
    check(output_of([python, PROGRAMS / f"{program}_calls.py", *arguments], tmp_path), wanted)


@pytest.mark.parametrize("program", NODE)
def test_node(program: str, server: Server, wanted: dict[str, str]) -> None:
    folder = node_with(*NODE[program].split())
    # Node looks for packages beside the program.
    copied = shutil.copy(PROGRAMS / f"{program}_calls.mjs", folder)
    arguments = [f"{server.url}/v1", MODEL, PROMPT, str(MAX_TOKENS)]
    check(output_of(["node", copied, *arguments], folder), wanted)


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm(route: str, server: Server, tmp_path: Path) -> None:
    """A benchmark's own counts of tokens are the server's."""
    python = python_with("guidellm", shares_libraries=True)
    report = tmp_path / "report.json"
    backend = f"kind=openai_http,target={server.url},model={MODEL},request_format={route}"
    command: list[str | Path] = [python.with_name("guidellm"), "run", "--backend", backend]
    command += ["--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", f"kind=max_requests,count={NUM_REQUESTS}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={MAX_TOKENS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={MODEL_FOLDER}"]
    command += ["--output", f"kind=json,path={report}", "--disable-console"]
    output_of(command, tmp_path)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    made = benchmark["scheduler_metrics"]["requests_made"]
    assert (made["successful"], made["total"]) == (NUM_REQUESTS, NUM_REQUESTS)
    # It keeps those that began and ended while it measured, of which a busy machine sees fewer.
    assert benchmark["requests"]["successful"]
    for request in benchmark["requests"]["successful"]:
        assert request["output_metrics"]["text_tokens"] == MAX_TOKENS
        if route == "/v1/completions":  # all that a chat has of so few tokens may be thoughts
            assert request["output"]
