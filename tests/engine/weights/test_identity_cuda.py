"""An updated engine with captured graphs is one that was started on the new weights, bit for bit.

Requests come in the same steps to both, so that all shapes of steps are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import transformers as hf

from demo import MODEL_FOLDER
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.weights import (
    AnySource,
    BeginUpdate,
    FinishUpdate,
    FolderSource,
    ReceiveTensors,
    WeightTarget,
)
from engine.engine import Engine
from engine.messages.request import Request
from engine.runner.model_runner import ModelRunner
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.models.formats.kinds import EVEN, KINDS
from tests.engine.models.formats.packers import write_quantized, write_quantized_experts
from tests.engine.models.rewriting import stored_tensors, write_other
from tests.engine.models.serving import write_tiny
from tests.engine.weights.shared_tensors import shared

pytestmark = pytest.mark.gpu

EAGLE_FOLDER = MODEL_FOLDER.parent / "eagle"
EXPERTS = hf.MixtralConfig(
    **EVEN, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
)
PROMPTS = [np.random.default_rng(n).integers(2, 97, n).astype(np.int32) for n in (3, 17, 40, 33)]
PARAMS = [
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(seed=1, temperature=0.9, logprobs=3),
    SamplingParams(seed=2, temperature=0.8, top_k=30, top_p=0.9, logprobs=3),
    SamplingParams(seed=3, presence_penalty=0.6, logprobs=3),
]
Drawn = dict[int, list[tuple[int, float]]]


def demo(folder: Path) -> None:
    copytree(MODEL_FOLDER, folder)


def quantized(kind: str) -> Callable[[Path], object]:
    config, module = KINDS[kind]
    return lambda folder: write_quantized(folder, config, module, EVEN)


def quantized_experts(folder: Path) -> None:
    config, module = KINDS["awq"]
    config = config | {"modules_to_not_convert": ["gate"]}
    write_quantized_experts(folder, EXPERTS, config, module)


CHECKPOINTS: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "dense": (demo, {}),
    "fp8 at load": (demo, {"quantization": "fp8"}),
    "fp8 by block": (quantized("fp8 by block"), {}),
    "int4": (quantized("awq"), {}),
    "experts": (lambda folder: write_tiny(EXPERTS, folder), {}),
    "int4 experts": (quantized_experts, {}),
}


def engine_of(folder: Path, drafter: Path | None = None, **model: Any) -> Engine:
    speculation = None
    if drafter is not None:
        speculation = SpeculativeConfig(
            method="eagle", model=str(drafter), num_speculative_tokens=3
        )
    settings: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 128} | model
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), **settings),
            cache=CacheConfig(num_blocks=200),
            scheduler=SchedulerConfig(max_rows=8, max_step_tokens=64),
            speculation=speculation,
        )
    )


def drawn(engine: Engine) -> Drawn:
    """Tokens with their logprobs; requests arrive one a step."""
    waiting, made = list(range(len(PROMPTS))), Drawn()
    while waiting or engine.has_work:
        if waiting:
            handle = waiting.pop(0)
            prompt, params = PROMPTS[handle], PARAMS[handle]
            request = Request(handle=handle, prompt_token_ids=prompt, params=params, max_tokens=24)
            engine.submit(b"", request)
        for _, output in engine.step():
            assert not output.errors, output.errors
            assert output.logprobs is not None or not len(output.token_ids)
            handles = np.repeat(output.handles, output.num_new).tolist()
            chosen = [] if output.logprobs is None else output.logprobs.chosen.tolist()
            for handle, *numbers in zip(handles, output.token_ids.tolist(), chosen, strict=True):
                made.setdefault(handle, []).append(tuple(numbers))
    engine.check()
    return made


class Trainer:
    """Updates an engine between two steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._num_updates = engine, 0

    def write(self, source: AnySource, target: WeightTarget = "model") -> None:
        self._engine.held.run_weights(BeginUpdate(target=target, check=True))
        self._engine.held.run_weights(ReceiveTensors(source=source))
        self._engine.held.run_weights(FinishUpdate())
        self._num_updates += 1
        self._engine.held.change_weights(str(self._num_updates), self._num_updates)


def folder_source(folder: Path) -> FolderSource:
    return FolderSource(path=str(folder))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_an_updated_engine_is_a_fresh_one(name: str, tmp_path: Path) -> None:
    write, settings = CHECKPOINTS[name]
    old, new = tmp_path / "old", tmp_path / "new"
    write(old)
    write_other(old, new)
    wanted = drawn(engine_of(new, **settings))
    engine = engine_of(old, **settings)
    trainer, before = Trainer(engine), drawn(engine)
    trainer.write(folder_source(new))
    assert drawn(engine) == wanted != before
    trainer.write(folder_source(old))
    assert drawn(engine) == before


def test_an_update_by_another_process(tmp_path: Path) -> None:
    old, new = MODEL_FOLDER, tmp_path / "new"
    write_other(old, new)
    wanted = drawn(engine_of(new))
    engine = engine_of(old)
    with shared(new, stored_tensors(new)) as source:
        Trainer(engine).write(source)
    assert drawn(engine) == wanted


def test_a_drafter_and_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of drafts follow measured times, no two engines' alike: here they are all 3."""
    monkeypatch.setattr(ModelRunner, "step_costs", lambda runner: None)
    write_other(MODEL_FOLDER, tmp_path / "new")
    write_other(EAGLE_FOLDER, tmp_path / "eagle")
    wanted = drawn(engine_of(tmp_path / "new", tmp_path / "eagle"))
    engine = engine_of(MODEL_FOLDER, EAGLE_FOLDER)
    trainer, before = Trainer(engine), drawn(engine)
    trainer.write(folder_source(tmp_path / "new"))
    trainer.write(folder_source(tmp_path / "eagle"), "draft")
    assert drawn(engine) == wanted != before
