"""Block heads through the whole engine: what they may not change, token for token, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.speculative_config import SpeculativeConfig
from tests.engine.runner.drafting_engines import (
    EVERYTHING,
    REPORTS,
    Tokens,
    assert_alike,
    make,
    requests,
    run,
    tokens_of,
)
from tests.engine.runner.drawn_replies import change_counts
from tests.engine.speculation.every_drafter import write_kind

K = 3
KINDS = ("dflash", "dflash2", "dspark")


def written(kind: str, folder: Path, **fields: Any) -> tuple[Path, SpeculativeConfig]:
    """A target's folder, and the configuration of a head for it."""
    _, own = write_kind(kind, folder)
    return folder / "target", SpeculativeConfig(num_speculative_tokens=K, **own, **fields)


@pytest.mark.parametrize(("method", "changes"), [("coupled", False), ("standard", True)])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_logprobs_are_those_of_plain_decoding(
    tmp_path: Path, kind: str, method: str, changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every parameter and report, whatever the number of drafts of a step."""
    target, speculation = written(kind, tmp_path, rejection_sample_method=method)
    params = [
        msgspec.structs.replace(each, **REPORTS[i % len(REPORTS)])
        for i, each in enumerate(EVERYTHING)
    ]
    asked = requests(params, emit_interval=5)
    plain = run(make(target, None), asked)
    if changes:
        change_counts(monkeypatch)
    engine = make(target, speculation, num_blocks=28)
    spoken = run(engine, asked)
    assert_alike(spoken, plain, params)
    stats = engine.stats().drafts
    assert stats is not None
    assert 0 < stats.num_accepted < stats.num_draft_tokens


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_seeded_tokens_depend_on_their_request_alone(
    tmp_path: Path, kind: str, method: str
) -> None:
    """Chunks, neighbours, cached prefixes, preemption and load leave a seeded row as it is."""
    target, speculation = written(
        kind, tmp_path, rejection_sample_method=method, draft_sample_method="gumbel"
    )
    asked, lone = requests(EVERYTHING), make(target, speculation, max_rows=2)
    alone: Tokens = {}
    for request in asked:
        alone |= tokens_of(run(lone, [request]))
    for engine in (
        make(target, speculation, num_blocks=22),
        make(target, speculation, max_step_tokens=7, prefix_caching=False),
    ):
        assert tokens_of(run(engine, asked, steps_between=1)) == alone
