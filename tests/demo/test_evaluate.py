"""The held-out measure, against models whose loss is known."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from demo.evaluate import IGNORED, bits_per_byte, scoring_windows
from demo.tokens import EncodedCorpus


class UniformModel(nn.Module):
    """Gives each of 256 ids the same probability."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 256))


@pytest.mark.parametrize("length", [2, 8, 9, 10, 13, 14, 40])
def test_each_token_is_a_target_once_with_context(length: int) -> None:
    document = torch.arange(100, 100 + length)
    targets: list[int] = []
    for number, (inputs, window_targets) in enumerate(scoring_windows(document, 8)):
        scored = (window_targets != IGNORED).nonzero().flatten().tolist()
        assert torch.equal(window_targets[scored], inputs[scored] + 1)
        assert number == 0 or min(scored) >= 4
        targets += window_targets[scored].tolist()
    assert targets == list(range(101, 100 + length))


def test_uniform_model_needs_log2_vocab_bits_a_token() -> None:
    documents = [torch.arange(1 + n) for n in (3, 20, 100)]
    corpus = EncodedCorpus([], documents, held_out_bytes=246)
    assert math.isclose(bits_per_byte(UniformModel(), corpus, 8), 8 * 123 / 246, rel_tol=1e-5)
