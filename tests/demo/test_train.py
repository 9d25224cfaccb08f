"""The training loop, on a few hundred bytes and two steps."""

import torch
from torch.nn.functional import cross_entropy

from demo.dialogue_batches import dialogue_batches, learned_dialogues, padded
from demo.llama import build_model
from demo.run import TrainingSettings
from demo.tokens import FIRST_MARKER_ID, EncodedCorpus
from demo.train import (
    Clock,
    Trainer,
    build_optimizers,
    rate_factor,
    replies_loss,
    taught_loss,
    train,
    window_loss,
)
from tests.demo.chat_tokenizer import chat_tokenizer


def test_rate_rises_stays_and_falls() -> None:
    settings = TrainingSettings(steps=100, warmup=0.1, cooldown=0.5)
    factors = [rate_factor(step, settings) for step in range(100)]
    assert factors[0] == 0.1
    assert factors[9:51] == [1.0] * 42
    assert factors[51:] == sorted(factors[51:], reverse=True)
    assert 0 < factors[99] < 0.05


def test_a_clock_gives_the_share_of_the_schedule_that_has_passed() -> None:
    assert Clock(TrainingSettings(steps=100)).at(7) == 7
    clock = Clock(TrainingSettings(steps=100, seconds=1e-9))
    assert clock.at(7) >= 100, "it ends by the time, whatever steps were made"
    assert Clock(TrainingSettings(steps=100, seconds=3600.0)).at(7) < 1


def test_every_parameter_has_one_optimizer() -> None:
    model = build_model(torch.device("cpu"), seed=0, dropout_rate=0.0)
    optimizers = build_optimizers(model, TrainingSettings())
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_two_steps_lower_both_figures() -> None:
    pattern = torch.arange(1, 9).repeat(300)
    corpus = EncodedCorpus([pattern, pattern], [pattern[:100]], held_out_bytes=99)
    model = build_model(torch.device("cpu"), seed=0, dropout_rate=0.1)
    settings = TrainingSettings(
        steps=2,
        batch_size=1,
        num_dialogues=2,
        num_decisions=2,
        warmup=0.5,
        evaluations=1,
        dialogue_weight=1.0,
        decision_weight=0.1,
    )
    tokenizer = chat_tokenizer()
    trainer = Trainer(model, corpus, tokenizer, settings, in_bfloat16=False)
    run = train(model, corpus, trainer, settings, "random weights")
    [(step, bits)] = run.curve
    assert step == 2
    assert bits < 12.5  # 13 bits a token before the first step
    assert (run.hardware, run.start) == ("CPU", "random weights")
    batch = next(dialogue_batches(tokenizer, 1, settings, 2048))
    model.eval()
    with torch.inference_mode():
        assert replies_loss(model, batch).item() < 1.1 * 8.7  # ln 8192 = 9.01


def test_only_replies_are_learned() -> None:
    """The loss is that of the replies' tokens under the whole logits."""
    model = build_model(torch.device("cpu"), seed=0, dropout_rate=0.0).eval()
    tokenizer = chat_tokenizer()
    found = next(learned_dialogues(tokenizer, 4, 2048))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([found.ids]), use_cache=False).logits[0]
        losses = cross_entropy(logits[:-1], torch.tensor(found.ids[1:]), reduction="none")
        wanted = losses[torch.tensor(found.learned[1:])].mean()
        # Padding and the batch's other order of sums move float32 by a few units in 1e-7 of 9.
        assert torch.allclose(replies_loss(model, padded([([found], 1.0)])), wanted, atol=1e-5)


def test_a_teacher_s_own_distribution_has_no_gradient() -> None:
    teacher, model = (build_model(torch.device("cpu"), 0, 0.0).eval() for _ in "ab")
    windows = torch.arange(18).view(2, 9)
    norms: list[float] = []
    for loss in (taught_loss(model, windows, teacher), window_loss(model, windows)):
        model.zero_grad()
        torch.autograd.backward(loss)
        assert model.lm_head.weight.grad is not None
        norms.append(model.lm_head.weight.grad.norm().item())
    # What is left comes from the eight markers of 8,192 ids, which the teacher is not asked for.
    assert norms[0] < 0.1 * norms[1]


def test_a_teacher_says_nothing_of_markers() -> None:
    teacher, model = (build_model(torch.device("cpu"), seed, 0.0).eval() for seed in (0, 1))
    teacher.lm_head.weight.data[FIRST_MARKER_ID:] *= 30.0  # so that they have some mass
    windows = torch.arange(18).view(2, 9)
    with torch.inference_mode():
        known, said = (
            m(input_ids=windows[:, :-1], use_cache=False).logits for m in (teacher, model)
        )
        wanted = known[..., :FIRST_MARKER_ID].softmax(-1)
        entropy = -(wanted * said.log_softmax(-1)[..., :FIRST_MARKER_ID]).sum(-1).mean()
        # Float32 sums of 8,192 terms, some 9 nats in all, differ by a few units in 1e-7 of that.
        assert torch.allclose(taught_loss(model, windows, teacher), entropy, atol=1e-5)
