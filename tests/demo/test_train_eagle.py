"""The head's training loop, on a few hundred bytes and some steps."""

import torch
from transformers import LlamaForCausalLM

from demo.head import TrainableEagleHead, head_config
from demo.head_run import EagleSettings
from demo.llama import CONTEXT_TOKENS, model_config
from demo.tokens import EncodedCorpus
from demo.train_eagle import EagleTrainer, depth_loss
from demo.train_head import WINDOW_TOKENS, batches, build_optimizers, train, write_windows


def test_every_parameter_has_one_optimizer() -> None:
    head = TrainableEagleHead(head_config())
    optimizers = build_optimizers(head, EagleSettings())
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, head.parameters()))


def test_an_output_that_is_the_feature_costs_the_entropy() -> None:
    torch.manual_seed(0)
    features, matrix = torch.randn(6, 8), torch.randn(20, 8)
    logits = features @ matrix.T
    loss = depth_loss(features, matrix, logits, features, 3.0, 5.0)
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(loss, entropy)


def test_some_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    target = LlamaForCausalLM(model_config()).eval()
    head = TrainableEagleHead(head_config())
    settings = EagleSettings(steps=4, written_windows=4, warmup=0.5)
    pieces = torch.arange(1, 200).repeat(3)
    corpus = EncodedCorpus([pieces], [], held_out_bytes=0)
    written = write_windows(target, corpus, settings, window_tokens=80)
    assert written.shape == (4, 81)
    trainer = EagleTrainer(target, head, settings)
    before = trainer(written).item()
    train(trainer, head, iter([written] * 4), settings)
    assert trainer(written).item() < before
    assert all(parameter.grad is None for parameter in target.parameters())


def test_batches_are_of_four_kinds_in_turn() -> None:
    """Its own text every other time; else the library, dialogues, and the library in long ones."""
    settings = EagleSettings(batch_tokens=2048)
    corpus = EncodedCorpus([torch.full((9000,), 1)], [], held_out_bytes=0)
    dialogues, written = torch.full((9000,), 2), torch.full((4, WINDOW_TOKENS + 1), 3)
    data = batches(corpus, [dialogues], written, settings)
    found = [next(data) for _ in range(12)]
    assert [int(batch[0, 0]) for batch in found] == [3, 1, 3, 2, 3, 1] * 2
    long = [WINDOW_TOKENS, WINDOW_TOKENS, CONTEXT_TOKENS] * 2
    assert [batch.shape[1] - 1 for batch in found[1::2]] == long
    assert all(batch.numel() - len(batch) == settings.batch_tokens for batch in found)
