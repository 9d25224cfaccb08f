"""The candidates of a block's places, on logits that are wider than the vocabulary."""

from __future__ import annotations

from typing import cast

import torch

from engine.kernels.linear import Linear
from engine.speculation.block_drafts import OutputLogits, SelectedDrafts
from sampling.vocab_shard import VocabShard

VOCAB, PADDING, TOP_K = 9, 3, 4


def test_padding_is_no_candidate() -> None:
    """Its columns hold whatever the LM head made there, here the highest of all."""
    table = torch.zeros(VOCAB, 2)
    shard = VocabShard.whole(VOCAB)
    drafts = SelectedDrafts(
        cast(OutputLogits, None), table, table, cast(Linear, None), TOP_K, shard
    )
    logits = torch.randn(5, VOCAB + PADDING, generator=torch.Generator().manual_seed(1))
    logits[:, VOCAB:] = 100.0
    values, ids = drafts._candidates(logits)
    wanted = logits[:, :VOCAB].topk(TOP_K, dim=1)
    assert torch.equal(ids, wanted.indices)
    assert torch.equal(values, wanted.values)
    kept = drafts._among(values, ids)
    assert torch.equal(kept.isfinite().sum(1), torch.full((5,), TOP_K))
    assert torch.equal(kept.gather(1, ids), values)
