"""Several ranks state the error that their two models have, and gather no logits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demo import MODEL_FOLDER
from engine.config import EngineConfig, ModelConfig
from engine.contracts.info import ErrorStatement
from engine.models.loader import load_model
from engine.startup.error_statement import Difference, ErrorMeasure, difference, hidden_states
from engine.startup.error_text import NUM_TOKENS, TEXT
from engine.structured.tokenizer import TokenizerReader
from sampling.device.ranks import LoneRank, RankExchange
from sampling.vocab_shard import VocabShard
from tests.engine.models.families.shard_models import MODELS, VOCAB
from tests.engine.models.serving import LENGTH, write_tiny
from tests.engine.startup.stated import CPU, stated
from tests.engine.structured.constrained import STRUCTURED, TOKENIZER
from tests.sampling.ranks import on_counting_ranks, on_ranks
from tests.sampling.sharded_cases import own

IDS = torch.arange(LENGTH) * 7919 % VOCAB
HIDDEN = 32
ROUNDING = 1e-9
"""Of sums in float64: 400,000 terms at most, of which each addition rounds by 2**-53."""


def logits_of(folder: Path, exchange: RankExchange, **model: Any) -> torch.Tensor:
    """The logits [LENGTH, VOCAB] that a model computes with an exchange, gathered."""
    loaded = load_model(ModelConfig(model=str(folder), **model), CPU, exchange)
    with torch.inference_mode():
        own_logits = loaded.logits(hidden_states(loaded, IDS, None))
    return VocabShard.split(VOCAB, exchange).whole_rows(own_logits)


def by_numpy(reference: torch.Tensor, served: torch.Tensor) -> Difference:
    logs = []
    for logits in (reference, served):
        wide = logits.double().numpy()
        logs.append(wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True))
    kl = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1)
    return Difference(float(kl.mean()), float(np.abs(logs[0] - logs[1]).max()))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_logits_in_shards_differ_as_whole_ones_do(size: int) -> None:
    generator = torch.Generator().manual_seed(5)
    one, other = (torch.randn(90, VOCAB, generator=generator) * 3 for _ in range(2))
    expected = by_numpy(one, other)

    def work(exchange: RankExchange) -> Difference:
        shard = VocabShard.split(VOCAB, exchange)
        parts = zip(*(torch.split(own(x, shard), 64) for x in (one, other)), strict=True)
        return difference(parts, exchange)

    found = on_ranks(size, work) if size > 1 else [work(LoneRank())]
    for each in found:
        assert each == found[0]
        assert each == pytest.approx(expected, abs=ROUNDING)


def test_nan_in_one_shard_is_no_number_on_every_rank() -> None:
    logits = torch.zeros(3, VOCAB)
    broken = logits.clone()
    broken[1, VOCAB - 1] = torch.nan

    def work(exchange: RankExchange) -> Difference:
        shard = VocabShard.split(VOCAB, exchange)
        return difference([(own(logits, shard), own(broken, shard))], exchange)

    for found in on_ranks(2, work):
        assert np.isnan(found).all()


@pytest.mark.parametrize("name", ["qwen3", "shared expert", "deepseek-v3"])
def test_ranks_state_the_difference_of_their_own_models(name: str, tmp_path: Path) -> None:
    """Weights and inputs in float8, as ranks round them; the reference is read in parts too."""
    write_tiny(MODELS[name], tmp_path)

    def work(exchange: RankExchange) -> tuple[ErrorStatement, Difference]:
        statement = stated(tmp_path, exchange, quantization="fp8")
        logits = [logits_of(tmp_path, exchange, quantization=each) for each in (None, "fp8")]
        return statement, by_numpy(*logits)

    for statement, expected in on_ranks(2, work):
        assert (statement.mean_kl, statement.max_logprob_gap) == pytest.approx(
            expected, abs=ROUNDING
        )
        assert expected.mean_kl > 1e-4
        assert (statement.scheme, statement.reference) == ("fp8", "unquantized weights in float32")
        assert statement.text == f"arbitrary tokens, {LENGTH} tokens"


def test_all_ranks_run_the_first_ones_text() -> None:
    """The others have no tokenizer."""
    config = EngineConfig(model=ModelConfig(model=str(MODEL_FOLDER)), structured=STRUCTURED)

    def work(exchange: RankExchange) -> list[int]:
        reader = TokenizerReader(STRUCTURED) if exchange.rank == 0 else None
        found: list[int] = ErrorMeasure(config, reader, exchange).reference.token_ids(8192).tolist()
        return found

    assert on_ranks(2, work) == [TOKENIZER.encode(TEXT)[:NUM_TOKENS]] * 2


def test_ranks_state_what_one_does_where_they_round_alike(tmp_path: Path) -> None:
    """Keys and values in float8, by scales that are the same on one rank and on two.

    Sums of two ranks round otherwise, by some 1e-6 of a number, so that one of 30,000 keys and
    values, of which there are 8,960, comes to lie on the other side of its rounding. The odds of
    ten are below 1e-10, and each moves the mean over all by some thousandths at most.
    """
    write_tiny(MODELS["qwen3"], tmp_path)
    alone = stated(tmp_path, LoneRank(), "fp8")
    ranks = on_counting_ranks(2, lambda exchange: stated(tmp_path, exchange, "fp8"))
    for statement, sent in ranks:
        assert statement.mean_kl == pytest.approx(alone.mean_kl, rel=0.1)
        assert statement.max_logprob_gap == pytest.approx(alone.max_logprob_gap, rel=0.2)
        assert (statement.scheme, statement.text) == (alone.scheme, alone.text)
        assert max(sent) <= max(LENGTH * HIDDEN * 4, NUM_TOKENS * 8), "no logits are gathered"
