"""An engine that slept at level 2 is the one it was, once its weights are written again.

Its table of angles and its slots of adapters are larger than a MiB: torch keeps them in segments of
the weights'. Its bits do not depend on a batch, so that whoever asks twice gets the same tokens.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.config import AdaptersConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.control import (
    AnyCommand,
    ControlReply,
    ControlRequest,
    EngineState,
    RunWeights,
    Sleep,
    WakeUp,
)
from engine.contracts.weights import BeginUpdate, FinishUpdate, FolderSource, ReceiveTensors
from engine.control.command_queue import CommandQueue
from engine.engine import Engine
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.adapters.peft import write_adapter
from tests.engine.traffic import FRONTEND, Inbox, request, run

pytestmark = pytest.mark.gpu
NUM_POSITIONS = 16384
NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with more positions, and adapters beside it."""
    folder = tmp_path_factory.mktemp("slept")
    shutil.copytree(MODEL_FOLDER, folder / "base")
    config = json.loads((folder / "base/config.json").read_text())
    config["max_position_embeddings"] = NUM_POSITIONS
    (folder / "base/config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(folder / "base")
    for seed, name in enumerate(NAMES):
        write_adapter(model, folder / name, seed, rank=16)
    return folder


def config_of(folder: Path, **model: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(folder / "base"), device="cuda", batch_invariant=True, **model),
        cache=CacheConfig(num_blocks=NUM_POSITIONS // 16 + 100),
        scheduler=SchedulerConfig(max_rows=8, max_step_tokens=64),
        speculation=SpeculativeConfig(
            method="eagle", model=str(EAGLE_FOLDER), num_speculative_tokens=2
        ),
        adapters=AdaptersConfig(
            max_loras=8, max_rank=64, modules=tuple((name, str(folder / name)) for name in NAMES)
        ),
        sleep_mode=True,
    )


def replies(engine: Engine) -> dict[tuple[int, int], list[int]]:
    inbox = Inbox()
    for handle, name in enumerate(("", *NAMES)):
        wish = {"params": SamplingParams(temperature=0.0), "max_tokens": 20, "adapter": name}
        engine.submit(FRONTEND, request(handle, [5, 6, 7, 8, 9, 10], **wish))
    run(engine, inbox)
    return dict(inbox.tokens)


class Commands:
    """Commands to an engine that does nothing else."""

    def __init__(self, engine: Engine) -> None:
        self._replies: list[ControlReply] = []
        self._queue = CommandQueue(engine.held, lambda _, reply: self._replies.append(reply))

    def follow(self, *commands: AnyCommand) -> EngineState:
        for command in commands:
            self._queue.submit(FRONTEND, ControlRequest(0, command))
            self._queue.run_due()
            assert self._replies[-1].error is None
        return self._queue.state


@pytest.mark.parametrize("quantization", [None, "fp8"])
@pytest.mark.parametrize("levels", [(2,), (1, 2), (2, 2), (1,)])
def test_what_no_checkpoint_holds_outlasts_a_sleep(
    levels: tuple[int, ...], quantization: Any, folder: Path
) -> None:
    engine = build_engine(config_of(folder, quantization=quantization))
    commands, wanted = Commands(engine), replies(engine)
    assert len({tuple(tokens) for tokens in wanted.values()}) == 4
    assert replies(engine) == wanted
    stats = engine.stats().adapters
    assert stats is not None
    for level in levels:
        commands.follow(Sleep(keeps_weights=level == 1))
        if levels == (2, 2):
            commands.follow(WakeUp())
    state = commands.follow(WakeUp())
    if 2 in levels:
        assert state.lacks_weights
        source = FolderSource(path=str(folder / "base"))
        update = BeginUpdate(), ReceiveTensors(source=source), FinishUpdate()
        state = commands.follow(*(RunWeights(weights=each) for each in update))
    assert not state.is_held
    assert replies(engine) == wanted
    after = engine.stats().adapters
    assert after is not None
    assert after.num_slot_loads == stats.num_slot_loads, "they are in their slots still"
