"""lm-evaluation-harness over HTTP against its own transformers backend, in float32.

Three local tasks on the demo model. Accuracies must be the same and every item's log-likelihood
nearly so: forwards in other batch shapes sum in other orders, which moves a sum of tens of
logprobs by about 1e-4. The package comes with the extra `slow`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from demo import MODEL_FOLDER
from tests.serving.lm_eval_tasks import evaluate, make_tasks
from tests.serving.process import serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not importlib.util.find_spec("lm_eval"), reason="lm_eval: the extra `slow` has it"
    ),
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("tasks"))


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
