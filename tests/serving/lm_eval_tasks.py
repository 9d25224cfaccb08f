"""lm-evaluation-harness in a process of its own, over tasks on the standard library."""

from __future__ import annotations

import argparse
import calendar
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
