"""lm-evaluation-harness over HTTP against its own transformers backend, in float32.

Three local tasks on the demo model. Accuracies must be the same and every item's log-likelihood
nearly so: forwards in other batch shapes sum in other orders, which moves a sum of tens of
logprobs by about 1e-4. The package comes with the extra `slow`.
"""

from __future__ import annotations

import argparse
import calendar
import importlib.util
import inspect
import json
import os
import queue
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from demo import MODEL_FOLDER
from tests.serving.process import serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not importlib.util.find_spec("lm_eval"), reason="lm_eval: the extra `slow` has it"
    ),
]

NUM_DOCS = 40
TASKS = {
    "local_choice": """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "local_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
""",
    "local_generate": """
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{line}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false, temperature: 0.0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("tasks"))


def make_tasks(folder: Path) -> Path:
    """Task files over lines of the standard library, which is what the demo model speaks."""
    rng = random.Random(0)
    texts = [inspect.getsource(module) for module in (argparse, calendar, textwrap, queue)]
    docs = []
    for _ in range(NUM_DOCS):
        lines = rng.choice(texts).splitlines(keepends=True)
        at = rng.randrange(8, len(lines) - 8)
        choices = [rng.choice(rng.choice(texts).splitlines(keepends=True)) for _ in range(3)]
        answer = rng.randrange(4)
        choices.insert(answer, lines[at])
        docs.append(
            {
                "context": "".join(lines[at - 6 : at]),
                "choices": [choice if choice.strip() else "pass\n" for choice in choices],
                "answer": answer,
                "line": lines[at].strip("\n"),
                "text": "".join(lines[at - 6 : at + 6]),
            }
        )
    data = folder / "docs.json"
    data.write_text("\n".join(json.dumps(doc) for doc in docs))
    for name, body in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ntest_split: test\n"
        head += f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        (folder / f"{name}.yaml").write_text(head + body.lstrip())
    return folder


def evaluate(tasks: Path, out: Path, model: str, arguments: str) -> dict[str, Any]:
    """The harness in a process of its own: results and samples by task."""
    command = [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments]
    command += ["--tasks", ",".join(TASKS), "--include_path", str(tasks), "--log_samples"]
    command += ["--output_path", str(out), "--seed", "1", "--device", "cpu"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **offline}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (results,) = out.rglob("results_*.json")
    found: dict[str, Any] = {"results": json.loads(results.read_text())["results"]}
    for name in TASKS:
        (samples,) = out.rglob(f"samples_{name}_*.jsonl")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        found[name] = {row["doc_id"]: row["filtered_resps"] for row in rows}
    return found


@pytest.fixture(scope="module")
def wanted(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    arguments = f"pretrained={MODEL_FOLDER},dtype=float32"
    return evaluate(tasks, tmp_path_factory.mktemp("hf"), "hf", arguments)


@pytest.mark.parametrize(
    ("flags", "backend"),
    [((), "huggingface"), (("--no-enable-prefix-caching",), "remote")],
    ids=["prefix cache, own tokenizer", "no prefix cache, the server's tokenizer"],
)
def test_same_as_transformers(
    tasks: Path, wanted: dict[str, Any], tmp_path: Path, flags: tuple[str, ...], backend: str
) -> None:
    with serve(*flags, ready_s=300.0) as server:
        arguments = f"model=tailrace-demo,base_url={server.url}/v1/completions,num_concurrent=4"
        arguments += f",tokenizer={MODEL_FOLDER},tokenizer_backend={backend},max_length=2048"
        got = evaluate(tasks, tmp_path, "local-completions", arguments)
    for task, metric in (("local_choice", "acc,none"), ("local_generate", "exact_match,none")):
        assert got["results"][task][metric] == wanted["results"][task][metric]
    assert 0.2 < got["results"]["local_choice"]["acc,none"] < 1.0
    assert got["local_generate"] == wanted["local_generate"]
    for doc, answers in wanted["local_choice"].items():
        for ours, theirs in zip(got["local_choice"][doc], answers, strict=True):
            assert float(ours[0]) == pytest.approx(float(theirs[0]), abs=1e-3)
            assert str(ours[1]) == str(theirs[1])
    for doc, answer in wanted["local_rolling"].items():
        ours = got["local_rolling"][doc][0]
        assert float(ours) == pytest.approx(float(answer[0]), abs=1e-3)
