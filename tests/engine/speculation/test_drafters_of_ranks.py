"""Drafters of several ranks propose what one rank's do, and send few bytes or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.speculation.make_drafter import make_drafter
from engine.speculative_config import SpeculativeConfig
from sampling.device.ranks import LoneRank, RankExchange
from sampling.noise import TILE
from sampling.vocab_shard import VocabShard
from tests.engine.speculation.drafted_rows import DraftedRows, Row, make_attention, make_rows
from tests.engine.speculation.tiny_blocks import (
    NESTED,
    SELECTOR,
    TOP_K,
    write_dflash,
    write_dflash2,
    write_dspark,
)
from tests.engine.speculation.tiny_heads import write_eagle1, write_eagle3
from tests.engine.tiny_models import FUSED
from tests.sampling.ranks import on_counting_ranks

VOCAB = 2 * TILE + 300
CPU = torch.device("cpu")
NUM_TOKENS = 3
LAYERS: dict[str, Any] = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 0]}}
GREEDY_BYTES, RANDOM_BYTES = 16, 4 + 16
"""What a rank sends of a draft: its best key and the id; of a random one its highest logit too."""
CANDIDATE_BYTES = TOP_K * (4 + 8)
"""Its highest logits and their ids, from which the candidates of all ranks are taken."""
ATOL = 1e-4
"""Of draft logits: some 50 times what the sums of two ranks were seen to change."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's, whose vocabulary is three tiles."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**FUSED["llama"] | {"vocab_size": VOCAB}))
    with torch.no_grad():  # as in `test_drafters`
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder)
    return folder


def write_drafter(kind: str, folder: Path) -> None:
    if kind == "eagle":
        write_eagle1(folder, bias=False, vocab_size=VOCAB)
    elif kind == "eagle3, reduced":
        write_eagle3(folder, draft_ids=list(range(5, VOCAB, 9)), vocab_size=VOCAB, **LAYERS)
    elif kind.startswith("eagle3"):
        own = kind == "eagle3, own head"
        write_eagle3(folder, draft_ids=None, vocab_size=VOCAB, is_own=own, **LAYERS)
    elif kind.startswith("d") and kind != "draft_model":
        layers: dict[str, Any] = {"target_layer_ids": [1, 0, 1]}
        if kind == "dspark":
            write_dspark(folder, vocab_size=VOCAB, **layers)
        elif kind == "dflash":
            write_dflash(folder, layers, vocab_size=VOCAB)
        else:
            merged = NESTED | SELECTOR | layers
            write_dflash2(folder, vocab_size=VOCAB, dflash_config=merged)
    else:
        torch.manual_seed(3)
        LlamaForCausalLM(LlamaConfig(**FUSED["llama"] | {"vocab_size": VOCAB})).save_pretrained(
            folder
        )


class Served(NamedTuple):
    drafts: list[list[int] | None]  # of each step and row
    q: torch.Tensor | None
    reported: list[int]  # bytes of each proposal
    num_drawn: list[int]  # rows that each proposal was for


def serve(
    target_folder: Path, drafter: Path, kind: str, temperature: float, exchange: RankExchange
) -> Served:
    """Some steps of two rows, on one of the ranks."""
    config = ModelConfig(model=str(target_folder), dtype="float32", max_model_len=64)
    target = load_model(config, CPU, exchange)
    assert isinstance(target, Decoder)
    shard = VocabShard.split(VOCAB, exchange)
    rows, sampling = make_rows(VOCAB, temperature, CPU, shard)
    speculation = SpeculativeConfig(
        method=kind.split(",")[0],  # type: ignore[arg-type]
        model=str(drafter),
        num_speculative_tokens=NUM_TOKENS,
        draft_sample_method="gumbel" if temperature else "greedy",
    )
    made = make_drafter(speculation, config, target, rows, sampling, make_attention)
    reported: list[int] = []
    num_drawn: list[int] = []
    propose = made.propose

    def counted(step: Any) -> torch.Tensor:
        sent: list[int] = getattr(exchange, "sent", [])
        before = len(sent)
        drafts = propose(step)
        reported.append(sum(sent[before:]))
        num_drawn.append(len(drafts))
        return drafts

    made.propose = counted  # type: ignore[method-assign]
    texts = [Row([11 * i % VOCAB for i in range(1, length)], limit=40) for length in (9, 5)]
    served = DraftedRows(target, made, sampling, texts, None)
    drafts = []
    for queries in ({0: 8}, {0: 1, 1: 4}, {0: 2, 1: 0}, {0: 0, 1: 3}):
        served.step(queries)
        drafts += [row.drafts for row in served.rows]
    return Served(drafts, made.draft_logits, reported, num_drawn)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "kind",
    [
        *("eagle", "eagle3", "eagle3, own head", "eagle3, reduced", "draft_model"),
        *("dflash", "dflash, 2", "dspark"),
    ],
)
def test_ranks_propose_what_one_does(
    folder: Path, tmp_path: Path, kind: str, temperature: float
) -> None:
    write_drafter(kind, tmp_path)

    def work(exchange: RankExchange) -> Served:
        return serve(folder, tmp_path, kind, temperature, exchange)

    alone = work(LoneRank())
    ranks = [served for served, _ in on_counting_ranks(2, work)]
    for served in ranks:
        assert served.drafts == alone.drafts
    if alone.q is not None:
        parts = [served.q for served in ranks if served.q is not None]
        assert [part.shape[2] for part in parts] == list(VocabShard.split(VOCAB, Two()).widths)
        torch.testing.assert_close(torch.cat(parts, dim=2), alone.q, atol=ATOL, rtol=0.0)
    a_draft = RANDOM_BYTES if temperature else GREEDY_BYTES
    if kind in ("eagle3, reduced", "draft_model"):
        a_draft = 0
    if kind == "dflash, 2":
        a_draft += CANDIDATE_BYTES
    for served in ranks:
        assert served.reported == [NUM_TOKENS * count * a_draft for count in served.num_drawn]


class Two(LoneRank):
    """Two ranks that say nothing."""

    size = 2
