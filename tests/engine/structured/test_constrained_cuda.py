"""Replies under grammars on a GPU: graphs and eager steps agree, nothing waits, all are valid.

In float32 tokens are equal where logits are, and the prompts are such that no choice is close.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.messages.step_output import Finish
from engine.runner.graphs.decode_graphs import DecodeGraphs
from engine.runner.model_runner import ModelRunner
from tests.engine.structured.constrained import (
    EAGLE,
    NGRAM,
    SCHEMAS,
    Reader,
    check_json,
    make,
    many_requests,
    of_schema,
    request,
)

pytestmark = pytest.mark.gpu

SPECULATIONS = {"none": None, "ngram": NGRAM} | {f"eagle {k}": v for k, v in EAGLE.items()}


@pytest.mark.parametrize("cuda_graphs", [True, False])
@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_finished_replies_are_valid(speculation: str, cuda_graphs: bool) -> None:
    reader = Reader(
        engine := make(
            device="cuda", cuda_graphs=cuda_graphs, speculation=SPECULATIONS[speculation]
        )
    )
    schemas = many_requests(reader, 24)
    finished = sum(check_json(reader, h, SCHEMAS[name]) for h, name in schemas.items() if name)
    assert finished >= 15
    stats = engine.stats()
    assert stats.grammars is not None
    assert stats.grammars.num_errors == stats.empty_rows == stats.nan_rows == 0


@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_captured_and_eager_steps_draw_the_same(speculation: str) -> None:
    replies = []
    for cuda_graphs in (True, False):
        reader = Reader(
            make(device="cuda", cuda_graphs=cuda_graphs, speculation=SPECULATIONS[speculation])
        )
        many_requests(reader, 12, seed=3)
        replies.append((dict(reader.tokens), dict(reader.finish)))
    assert replies[0] == replies[1]


def test_replies_are_those_of_the_cpu() -> None:
    replies = []
    for device in ("cpu", "cuda"):
        reader = Reader(make(device=device))
        many_requests(reader, 10, seed=3)
        replies.append(dict(reader.tokens))
    assert replies[0] == replies[1]


@pytest.mark.parametrize("speculation", ["none", "eagle gumbel"])
def test_draws_under_grammars_are_captured(
    speculation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with and without a grammar, filters and penalties run on captured draws."""
    found: list[bool] = []
    honest: Any = DecodeGraphs._captured_draw

    def captured_draw(*args: Any) -> Any:
        draw = honest(*args)
        found.append(draw is not None)
        return draw

    monkeypatch.setattr(DecodeGraphs, "_captured_draw", captured_draw)
    reader = Reader(make(device="cuda", speculation=SPECULATIONS[speculation]))
    many_requests(reader, 12, seed=4)
    assert len(found) > 10
    assert all(found)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("speculation", ["none", "eagle gumbel"])
def test_no_step_waits_for_the_gpu(speculation: str, cuda_graphs: bool, no_waiting: None) -> None:
    """Filling and copying masks included; results are waited for by their event alone."""
    reader = Reader(
        engine := make(
            device="cuda", cuda_graphs=cuda_graphs, speculation=SPECULATIONS[speculation]
        )
    )

    def run(first: int) -> None:
        handles = range(first, first + 4)
        reader.run(*(request(h, of_schema("flat"), seed=h - first) for h in handles))

    run(0)  # compiles what is compiled on first use
    torch.cuda.set_sync_debug_mode("error")
    run(4)
    assert isinstance(engine._parts.runner, ModelRunner)
    assert torch.from_numpy(engine._parts.runner.mask_buffer).is_pinned()
    assert set(reader.finish.values()) <= {Finish.STOP, Finish.LENGTH}
