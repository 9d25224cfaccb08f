"""The training loop, on a few hundred bytes and two steps."""

import torch

from demo.llama import build_model
from demo.run import TrainingSettings
from demo.tokens import EncodedCorpus
from demo.train import build_optimizers, rate_factor, train


def test_rate_rises_stays_and_falls() -> None:
    settings = TrainingSettings(steps=100, warmup=0.1, cooldown=0.5)
    factors = [rate_factor(step, settings) for step in range(100)]
    assert factors[0] == 0.1
    assert factors[9:51] == [1.0] * 42
    assert factors[51:] == sorted(factors[51:], reverse=True)
    assert 0 < factors[99] < 0.05


def test_every_parameter_has_one_optimizer() -> None:
    model = build_model(torch.device("cpu"), seed=0, dropout_rate=0.0)
    optimizers = build_optimizers(model, TrainingSettings())
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_two_steps_lower_the_held_out_figure() -> None:
    pattern = torch.arange(1, 9).repeat(300)
    corpus = EncodedCorpus([pattern, pattern], [pattern[:100]], held_out_bytes=99)
    model = build_model(torch.device("cpu"), seed=0, dropout_rate=0.1)
    run = train(model, corpus, TrainingSettings(steps=2, batch_size=1, warmup=0.5, evaluations=1))
    [(step, bits)] = run.curve
    assert step == 2
    assert bits < 12.5  # 13 bits a token before the first step
    assert run.hardware == "CPU"
