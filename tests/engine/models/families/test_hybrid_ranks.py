"""Ranks divide the heads of states, and make up the whole model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.models.loader import load_model
from engine.startup.error_statement import hidden_states
from sampling.device.ranks import RankExchange
from sampling.noise import TILE
from tests.engine.models.families.hybrid_models import FAMILIES, config_of, write_hybrid
from tests.engine.models.families.hybrid_shards import WHOLE_NORM
from tests.sampling.ranks import on_ranks

VOCAB = 2 * TILE + 9


def logits_of(folder: Path, exchange: RankExchange, ids: torch.Tensor) -> torch.Tensor:
    """A rank's part of the logits of a text."""
    config = ModelConfig(model=str(folder), dtype="float32")
    model = load_model(config, torch.device("cpu"), exchange)
    return model.logits(hidden_states(model, ids, None))


def check_parts(config: PreTrainedConfig, folder: Path) -> None:
    """Check the logits of two ranks against transformers' own."""
    reference = write_hybrid(config, folder)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB, 37))
    wanted = reference(input_ids=ids[None], use_cache=False).logits[0]
    parts = on_ranks(2, lambda exchange: logits_of(folder, exchange, ids))
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in WHOLE_NORM])
@torch.inference_mode()
def test_parts_make_up_the_model(family: str, tmp_path: Path) -> None:
    check_parts(config_of(family, vocab_size=VOCAB), tmp_path)


@torch.inference_mode()
def test_ranks_share_a_group_of_states(tmp_path: Path) -> None:
    """A model may have fewer groups than there are ranks: heads of several read the same."""
    config = config_of("falcon_h1", vocab_size=VOCAB)
    config.mamba_n_groups = 1
    check_parts(config, tmp_path)


@pytest.mark.parametrize("family", WHOLE_NORM)
def test_a_norm_over_all_heads_is_not_divided(family: str, tmp_path: Path) -> None:
    write_hybrid(config_of(family, vocab_size=VOCAB), tmp_path)
    ids = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ModelError, match="state-space layers has 1 groups"):
        on_ranks(2, lambda exchange: logits_of(tmp_path, exchange, ids))
