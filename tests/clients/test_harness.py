"""lm-evaluation-harness chooses by decisions as it does by log-likelihoods of completions.

The adapter is the example's. A task's contexts are lines of the standard library, which is what the
demo model speaks, and its choices lines that may follow; they end and begin where no token of the
model holds both, as texts of tasks do.
"""

from __future__ import annotations

import argparse
import calendar
import inspect
import json
import queue
import random
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo import MODEL_FOLDER
from tests.clients.environments import python_with
from tests.clients.programs_run import MODEL, output_of
from tests.serving.process import Server, serve

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "lm_eval_decisions.py"
PACKAGES = ("lm_eval[api]", "datasets")
NUM_DOCS = 40
TASK = """
task: next_line
dataset_path: json
test_split: test
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Puts a state to the model as it is."""
    folder = tmp_path_factory.mktemp("templates")
    chat, decision = folder / "chat.jinja", folder / "decision.jinja"
    chat.write_text("{{ messages[-1].content }}")
    decision.write_text("{{ state }}")
    flags = ["--chat-template", str(chat), "--decision-template", str(decision)]
    with serve(*flags, ready_s=300.0) as server:
        yield server


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the task's file."""
    folder = tmp_path_factory.mktemp("tasks")
    rng = random.Random(0)
    texts = [inspect.getsource(module) for module in (argparse, calendar, textwrap, queue)]
    lines = [line for text in texts for line in text.splitlines() if len(line.strip()) > 8]
    docs = []
    for _ in range(NUM_DOCS):
        at = rng.randrange(6, len(lines) - 1)
        right = lines[at].strip()
        others = {line.strip() for line in rng.sample(lines, 8)} - {right}
        choices = sorted(others)[:3]
        answer = rng.randrange(4)
        choices.insert(answer, right)
        context = "\n".join(lines[at - 6 : at]).strip() + "\n# The next line is:"
        docs.append({"context": context, "choices": choices, "answer": answer})
    data = folder / "docs.json"
    data.write_text("\n".join(json.dumps(doc) for doc in docs))
    (folder / "next_line.yaml").write_text(TASK.format(data=data))
    return folder


def by_completions(python: Path, server: Server, tasks: Path, out: Path) -> Any:
    """The results of the harness's own backend."""
    arguments = f"model={MODEL},base_url={server.url}/v1/completions,max_length=2048"
    arguments += f",tokenizer={MODEL_FOLDER},tokenizer_backend=huggingface"
    command: list[str | Path] = [python, "-m", "lm_eval", "--model", "local-completions"]
    command += ["--model_args", arguments, "--tasks", "next_line", "--include_path", tasks]
    command += ["--output_path", out]
    output_of(command, tasks)
    (results,) = out.rglob("results_*.json")
    return json.loads(results.read_text())["results"]["next_line"]


def test_decisions_have_the_accuracy_of_log_likelihoods(
    server: Server, tasks: Path, tmp_path: Path
) -> None:
    python = python_with(*PACKAGES, shares_libraries=True)
    wanted = by_completions(python, server, tasks, tmp_path)
    done = subprocess.run(
        [python, EXAMPLE, f"{server.url}/v1", MODEL, "next_line", tasks],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])["next_line"]
    assert found["acc,none"] == wanted["acc,none"]
    assert 0.25 < found["acc,none"] < 1.0
