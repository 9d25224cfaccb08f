"""Unmodified agents run a loop of three turns on a small model, to the right answer.

The model is the demo model, or the folder that TOOL_LOOPS_MODEL names, such as one that
`python -m demo.train` has just made.

The question wants two tools, one with the result of the other, so a loop is two replies with a call
and one with the answer. A program of `loops/` is given the address, the model and the question; it
prints, for each way of asking that its package has, the answer and the calls that were made.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import MODEL_FOLDER
from tests.clients.environments import node_with, python_with
from tests.clients.programs_run import MODEL, output_of
from tests.serving.process import Server, serve

LOOPS = Path(__file__).parent / "loops"
QUESTION = "Multiply 25 by 17, then add 2."
CALLS = [["multiply", 25, 17], ["add", 425, 2]]
ANSWER = "427"
PYTHON = {
    "openai_agents": "openai-agents",
    "pydantic_ai": "pydantic-ai-slim[openai]",
    "langchain": "langchain langchain-openai",
    "litellm": "litellm mcp",  # it imports the other where tools are given
    "instructor": "instructor",
    "inspect": "inspect-ai openai",
    "anthropic": "anthropic",
    "responses": "openai",
    "stored": "openai",
    "strands": "strands-agents[openai]",
    "agno": "agno openai",
    "haystack": "haystack-ai",
    "llm": "llm",
    "chatlas": "chatlas openai",
    "magentic": "magentic",
    "autogen": "autogen-agentchat autogen-ext[openai]",
    "semantic_kernel": "semantic-kernel",
}
"""Packages by program."""
NODE = {
    "openai": "openai",
    "ai": "ai @ai-sdk/openai @ai-sdk/openai-compatible",
    "anthropic": "@anthropic-ai/sdk",
    "openai_agents": "@openai/agents openai zod",
    "langchain": "langchain @langchain/openai @langchain/core zod",
}

FOLDER = Path(os.environ.get("TOOL_LOOPS_MODEL", MODEL_FOLDER))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(str(FOLDER), "--served-model-name", MODEL) as server:
        yield server


def check(output: str) -> None:
    """Compare what a program's last line reports."""
    found = json.loads(output.splitlines()[-1])
    assert found
    for name, loop in found.items():
        assert loop["calls"] == CALLS, name
        assert ANSWER in loop["answer"], (name, loop["answer"])


@pytest.mark.parametrize("program", PYTHON)
def test_python(program: str, server: Server, tmp_path: Path) -> None:
    python = python_with(*PYTHON[program].split())
    arguments = [f"{server.url}/v1", MODEL, QUESTION]
    check(output_of([python, LOOPS / f"{program}_loop.py", *arguments], tmp_path))


@pytest.mark.parametrize("program", NODE)
def test_node(program: str, server: Server) -> None:
    folder = node_with(*NODE[program].split())
    # Node looks for packages beside the program.
    copied = shutil.copy(LOOPS / f"{program}_loop.mjs", folder)
    check(output_of(["node", copied, f"{server.url}/v1", MODEL, QUESTION], folder))
