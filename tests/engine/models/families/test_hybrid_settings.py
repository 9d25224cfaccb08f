"""Settings that few configs of hybrid families have: served as transformers reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig

from engine.messages.request import PromptLogprobsParams
from tests.engine.models.families.hybrid_models import config_of, prompt, write_hybrid
from tests.engine.models.families.hybrid_server import serve

ROTATED = {"rope_type": "default", "rope_theta": 1000.0}
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo-rotated": ("olmo_hybrid", {"rope_parameters": ROTATED}),
}


def with_settings(family: str, settings: dict[str, Any]) -> PreTrainedConfig:
    config = config_of(family)
    for name, value in settings.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize("name", SERVED)
def test_served(name: str, tmp_path: Path) -> None:
    server = serve(tmp_path, write_hybrid(with_settings(*SERVED[name]), tmp_path))
    for length in (40, 17):
        server.submit(prompt(length), prompt_logprobs=PromptLogprobsParams())
    server.run()
