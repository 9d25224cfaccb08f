"""The EAGLE head's rollout against drafting one token after another."""

from pathlib import Path

import pytest
import torch

from demo.head import TrainableEagleHead, load_head, save_head
from tests.demo.small_config import CONFIG, HIDDEN


@pytest.fixture
def head() -> TrainableEagleHead:
    torch.manual_seed(0)
    return TrainableEagleHead(CONFIG).eval()


@torch.inference_mode()
def test_rollout_is_drafting_at_every_position(head: TrainableEagleHead) -> None:
    """Step j at i equals j steps from i - j on, each fed the output of the step before."""
    torch.manual_seed(1)
    embeddings, features = torch.randn(2, 1, 9, HIDDEN)
    outputs = head.rollout(embeddings, features, 4)
    for last in range(9 - 3):  # true features up to `last`
        known = features[:, : last + 1]
        for j in range(4):
            entries = known.shape[1]
            (drafted,) = head.rollout(embeddings[:, :entries], known, 1)
            newest = drafted[:, -1:]
            torch.testing.assert_close(outputs[j][:, last + j : last + j + 1], newest)
            known = torch.cat([known, newest], dim=1)


def test_a_saved_head_loads(head: TrainableEagleHead, tmp_path: Path) -> None:
    save_head(head, tmp_path)
    loaded = load_head(tmp_path)
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, head.get_parameter(name).bfloat16().float()), name
