"""A factor on the model's logits, and its head that goes with it."""

import torch
from transformers import LlamaForCausalLM

from demo.calibrate import calibrated_head, calibrated_model
from demo.head import TrainableEagleHead
from tests.demo.small_config import CONFIG, HIDDEN

FACTOR = 0.953125


@torch.inference_mode()
def test_logits_are_times_the_factor() -> None:
    torch.manual_seed(0)
    model, ids = LlamaForCausalLM(CONFIG).eval(), torch.randint(0, 64, (1, 9))
    before = model(ids).logits
    model.load_state_dict(calibrated_model(model.state_dict(), FACTOR))
    torch.testing.assert_close(model(ids).logits, before * FACTOR)


@torch.inference_mode()
def test_the_head_s_outputs_go_with_its_features() -> None:
    """Drafts of drafts too; the norm's epsilon is a millionth of what it is added to."""
    torch.manual_seed(0)
    head = TrainableEagleHead(CONFIG).eval()
    embeddings, features = torch.randn(2, 1, 9, HIDDEN)
    before = head.rollout(embeddings, features, 4)
    head.load_state_dict(calibrated_head(head.state_dict(), FACTOR))
    after = head.rollout(embeddings, features * FACTOR, 4)
    for step, (mine, theirs) in enumerate(zip(after, before, strict=True)):
        torch.testing.assert_close(mine[:, step:], theirs[:, step:] * FACTOR, rtol=1e-4, atol=1e-4)
