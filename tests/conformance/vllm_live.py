"""vLLM's tests of a running server, on ours: `python -m tests.conformance.vllm_live FOLDER`.

The folder is vLLM's sources. Every server that a test starts is the demo model, under the name that
the test asks for and with its flags, those of memory, data types and adapters aside.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.conformance.sorting import run_sorted

HERE = Path(__file__).resolve().parent
CHAT, COMPLETION = "entrypoints/openai/chat_completion", "entrypoints/openai/completion"
RESPONSES, SERVE = "entrypoints/openai/responses", "entrypoints/serve"
FILES = (
    *(f"{CHAT}/test_{name}.py" for name in ("chat", "chat_completion", "chat_echo")),
    *(f"{CHAT}/test_{name}.py" for name in ("chat_logit_bias_validation", "include_reasoning")),
    *(f"{CHAT}/test_{name}.py" for name in ("completion_with_function_calling", "root_path")),
    *(f"{CHAT}/test_{name}.py" for name in ("enable_force_include_usage", "logprob_token_ids")),
    *(f"{CHAT}/test_{name}.py" for name in ("extra_content_fields", "thinking_token_budget")),
    *(f"{COMPLETION}/test_{name}.py" for name in ("completion", "prompt_validation")),
    f"{COMPLETION}/test_token_in_token_out.py",
    *(f"{RESPONSES}/test_{name}.py" for name in ("basic", "function_call", "simple", "stateful")),
    f"{RESPONSES}/test_structured_output.py",
    "entrypoints/openai/models/test_models.py",
    "entrypoints/openai/test_chunked_prompt.py",
    "entrypoints/openai/test_return_token_ids.py",
    "entrypoints/openai/test_return_tokens_as_ids.py",
    "entrypoints/anthropic/test_messages.py",
    f"{SERVE}/tokenize/test_tokenization.py",
    *(f"{SERVE}/instrumentator/test_{name}.py" for name in ("basic", "metrics", "uds")),
    f"{SERVE}/middleware/test_optional_middleware.py",
    "tool_use/test_chat_completions.py",
    "tool_use/test_tool_calls.py",
    "tool_use/test_parallel_tool_calls.py",
)


def main(folder: Path, options: list[str]) -> int:
    """Run the files by pytest, which gets the options; returns how many failures are unsorted."""
    with tempfile.TemporaryDirectory() as parent:
        tests = Path(parent) / "tests"
        for name in ("entrypoints", "tool_use"):
            shutil.copytree(folder / "tests" / name, tests / name)
        for name in ("conformance", "serving"):  # their package of tests comes before ours
            shutil.copytree(HERE.parent / name, tests / name)
        for name in ("__init__.py", "conftest.py", "utils.py"):
            text = "" if name == "__init__.py" else "from vllm_live_stand_in import *\n"
            (tests / name).write_text(text)
        paths = os.pathsep.join((parent, str(HERE.parent.parent), str(HERE)))
        arguments = ["-p", "vllm_live_stand_in", "-c", os.devnull, "--rootdir", parent]
        arguments += ["-o", "asyncio_mode=auto", "--timeout=300", "--models", "hermes"]
        arguments += ["--continue-on-collection-errors"]
        arguments += [*options, *(f"tests/{file}" for file in FILES)]
        environment = os.environ | {"PYTHONPATH": paths, "VLLM_FOLDER": str(folder)}
        return run_sorted("vllm_live", Path(parent), arguments, environment)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]), sys.argv[2:]), 255))
