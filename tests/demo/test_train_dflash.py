"""The block head's loss, and its training loop on a few hundred tokens and some steps."""

import torch
from transformers import LlamaForCausalLM

from demo.block_head import TrainableBlockHead, block_config
from demo.head_run import BlockSettings
from demo.llama import model_config
from demo.train_dflash import BlockTrainer
from demo.train_head import build_optimizers, draft_loss, train


def make() -> tuple[LlamaForCausalLM, TrainableBlockHead]:
    torch.manual_seed(0)
    return LlamaForCausalLM(model_config()).eval(), TrainableBlockHead(block_config())


def test_every_parameter_has_one_optimizer() -> None:
    _, head = make()
    optimizers = build_optimizers(head, BlockSettings())
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, head.parameters()))


def test_outputs_that_are_the_targets_states_cost_the_entropy() -> None:
    """Each place's is compared with the state one before it, weighted by its depth."""
    target, head = make()
    settings = BlockSettings(anchors=3, step_weight=0.5)
    windows = torch.randint(1, 8000, (2, 40), generator=torch.Generator().manual_seed(2))
    features = target.model(windows[:, :-1], use_cache=False).last_hidden_state
    seen: list[torch.Tensor] = []

    def exact(states: object, embeddings: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        seen.append(anchors)
        places = anchors[:, :, None] + torch.arange(head.block_size) - 1
        outputs: torch.Tensor = features[torch.arange(2)[:, None, None], places]
        return outputs

    head.forward = exact  # type: ignore[method-assign]
    loss = BlockTrainer(target, head, settings)(windows)
    (anchors,) = seen
    assert int(anchors.min()) >= 1
    assert int(anchors.max()) + head.block_size <= 39
    places = anchors[:, :, None] + torch.arange(head.block_size - 1)
    states = features[torch.arange(2)[:, None, None], places]
    log_p = target.lm_head(states).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean((0, 1))
    weights = 0.5 ** torch.arange(head.block_size - 1)
    torch.testing.assert_close(loss, (entropy * weights).sum(), rtol=1e-4, atol=1e-4)


def test_some_steps_lower_the_loss() -> None:
    target, head = make()
    settings = BlockSettings(steps=4, anchors=8, warmup=0.5)
    windows = torch.arange(1, 243).view(2, 121)

    def loss() -> float:
        return BlockTrainer(target, head, settings)(windows).item()

    before = loss()
    trainer = BlockTrainer(target, head, settings)
    train(trainer, head, iter([windows] * 4), settings)
    assert loss() < before
    assert all(parameter.grad is None for parameter in target.parameters())


def test_refused_mass_counts() -> None:
    """Without a weight the loss is the cross entropy; the weight multiplies 1 - sum min(p, q)."""
    torch.manual_seed(0)
    output, matrix, logits = torch.randn(5, 8), torch.randn(20, 8), torch.randn(5, 20)
    p, q = logits.softmax(-1), (output @ matrix.T).softmax(-1)
    entropy = -(p * q.log()).sum(-1)
    refused = 0.5 * (p - q).abs().sum(-1)
    torch.testing.assert_close(draft_loss(output, matrix, logits, 0.0), entropy)
    torch.testing.assert_close(draft_loss(output, matrix, logits, 3.0), entropy + 3.0 * refused)
