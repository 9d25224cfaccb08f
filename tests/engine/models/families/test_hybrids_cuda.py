"""Families whose layers keep states on a GPU: kernels, graphs, and drafts in them, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.speculative_config import SpeculativeConfig
from tests.engine.models.families.hybrid_models import (
    FAMILIES,
    config_of,
    prompt,
    repetitive,
    write_hybrid,
)
from tests.engine.models.families.hybrid_server import Server, serve

pytestmark = pytest.mark.gpu
HIDDEN = 256
"""Heads of attention are then 64 and 128 wide, as kernels for prompts take them."""


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_hybrid(config_of(request.param, HIDDEN), folder)


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_served_as_transformers_computes(model: tuple[Path, Any], num_drafts: int) -> None:
    """Prompts in chunks beside decoding rows, hits of prefixes, and drafts, in captured steps."""
    speculation = None
    if num_drafts:
        speculation = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=num_drafts,
            prompt_lookup_min=1,
            prompt_lookup_max=3,
        )
    server: Server = serve(*model, speculation=speculation, device="cuda", max_step_tokens=48)
    for text in (repetitive(30), prompt(50), repetitive(45), prompt(1), prompt(17)):
        server.submit(text, max_tokens=24)
    server.run()
    reply = server.ask(prompt(50) + server.replies[1].tokens[:9], max_tokens=20)
    assert reply.num_cached > 0
    torch.cuda.synchronize()
