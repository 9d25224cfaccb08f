"""Penalties against a plain loop in float32, bit for bit, and their counts. Nothing is random."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling import penalties, reference
from sampling.params import SamplingParams
from sampling.penalties import OUTPUT_UNIT, PROMPT_BIT, PenaltyCounts, count_drafts, penalize
from tests.sampling.steps import Host, Request, make_logits

CPU, WIDTH = torch.device("cpu"), 600
FACTORS = [  # repetition, presence, frequency
    (1.0, 0.0, 0.0),
    (1.3, 0.0, 0.0),
    (0.5, 0.0, 0.0),
    (1.0, 1.7, 0.0),
    (1.0, 0.0, -0.7),
    (1.1, -2.0, 2.0),
    (7.5, 0.3, 0.1),
]


def make_words(n: int) -> Tensor:
    """Counts of tokens unseen, in the prompt, in the output, in both; up to 5,000 times."""
    generator = torch.Generator().manual_seed(1)
    counts = torch.randint(0, 4, (n, WIDTH), generator=generator)
    counts[:, ::97] = 5_000
    in_prompt = torch.randint(0, 2, (n, WIDTH), generator=generator)
    return (counts * OUTPUT_UNIT + in_prompt * PROMPT_BIT).int()


def looped(x: Tensor, words: Tensor, factors: tuple[float, float, float]) -> list[float]:
    """Penalise token by token, each operation rounded to float32."""
    repetition, presence, frequency = map(np.float32, factors)
    out = []
    for value, word in zip(x.numpy(), words.tolist(), strict=True):
        if word:  # in prompt or output
            value = value / repetition if value > 0 else value * repetition
        count = word // 2
        value = value - frequency * np.float32(count)
        if count:
            value = value - presence
        out.append(float(value))
    return out


def apply(logits: Tensor, words: Tensor, factors: list[tuple[float, float, float]]) -> Tensor:
    columns = (torch.tensor(column) for column in zip(*factors, strict=True))
    return penalize(logits, words, *columns)


def test_penalize_equals_a_plain_loop() -> None:
    logits, words = make_logits(len(FACTORS), WIDTH, scale=5.0), make_words(len(FACTORS))
    logits[:, 3:9] = torch.tensor([0.0, -0.0, -torch.inf, 1e-30, 1e37, -1e30])
    penalized = apply(logits, words, FACTORS)
    for i, factors in enumerate(FACTORS):
        assert penalized[i].tolist() == looped(logits[i], words[i], factors)
    assert torch.equal(penalized[0], logits[0])  # neutral
    assert (penalized[:, 5] == -torch.inf).all()  # a mask stays one


def test_penalize_is_the_reference_but_for_rounding() -> None:
    logits, words = make_logits(len(FACTORS), WIDTH), make_words(len(FACTORS))
    penalized = apply(logits, words, FACTORS).double().numpy()
    for i, (repetition, presence, frequency) in enumerate(FACTORS):
        exact = reference.penalize(
            logits[i].double().numpy(),
            (words[i] >> 1).long().numpy(),
            (words[i] & 1).bool().numpy(),
            repetition=repetition,
            presence=presence,
            frequency=frequency,
        )
        np.testing.assert_allclose(penalized[i], exact, rtol=1e-5, atol=1e-5)


def counted(prompt: list[int], output: list[int]) -> list[int]:
    words = [0] * WIDTH
    for token in output:
        words[token] += 2
    for token in prompt:
        words[token] |= 1
    return words


def test_counts_of_a_history() -> None:
    prompt, output = [5, 5, 5, 9, 0], [9, 7, 7, 599]
    history = torch.full((3, 12), 44, dtype=torch.int32)  # what lies beyond is not counted
    history[1, :9] = torch.tensor(prompt + output)
    counts = PenaltyCounts(3, WIDTH, CPU)
    counts.words.fill_(-7)  # another request's
    counts.stage(1, prompt_len=5, num_tokens=9)
    counts.flush(history)
    assert counts.words[1].tolist() == counted(prompt, output)
    assert (counts.words[::2] == -7).all()
    counts.words[1] = 3
    counts.flush(history)  # staged once, counted once
    assert (counts.words[1] == 3).all()
    counts.stage(1, prompt_len=5, num_tokens=9)
    counts.unstage(1)
    counts.unstage(0)
    counts.flush(history)
    assert (counts.words[1] == 3).all()


def test_added_tokens_are_counted_as_often_as_they_occur() -> None:
    counts = PenaltyCounts(3, WIDTH, CPU)
    rows, tokens = torch.tensor([2, 0, 2, 2]).int(), torch.tensor([8, 8, 8, 9])
    for mask in ([True] * 4, [True, False, False, True]):
        counts.add(rows, tokens, torch.tensor(mask))
    expected = torch.zeros(3, WIDTH)
    expected[2, 8], expected[0, 8], expected[2, 9] = 6, 2, 4
    assert torch.equal(counts.words.float(), expected)


def request(**factors: Any) -> Request:
    return Request(SamplingParams(temperature=0.9, **factors), seed=8, tokens=[1, 2, 2, 3])


def test_drafts_before_a_position_count_where_the_vocabulary_has_them() -> None:
    """Two, two, one and none of the tokens before the place to draw; -1 and 600 are none."""
    history = torch.tensor([[5, 7, 7], [5, -1, 9], [5, 7, WIDTH], [5, 7, 9]], dtype=torch.int32)
    words = torch.zeros(4, WIDTH, dtype=torch.int32)
    count_drafts(words, history, torch.full((4,), 3), torch.tensor([2, 2, 1, 0]))
    found = {tuple(at): int(words[tuple(at)]) for at in words.nonzero().tolist()}
    assert found == {(0, 7): 2 * OUTPUT_UNIT, (1, 9): OUTPUT_UNIT}


def test_the_sampler_counts_what_it_draws() -> None:
    host, one = Host(2, WIDTH), request(frequency_penalty=-2.0, repetition_penalty=0.7)
    host.admit(1, one)
    for i in range(12):
        host.step([1], make_logits(1, WIDTH, seed=i, scale=0.5))
        words = counted(one.tokens[:4], one.tokens[4:])
        assert host.rows.counts.words[1].tolist() == words
    assert len(set(one.tokens)) < len(one.tokens)  # something was drawn twice


@pytest.mark.parametrize("preempted_after", [1, 5])
def test_counts_are_rebuilt_after_readmission(preempted_after: int) -> None:
    factors = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.2}
    host, whole = Host(3, WIDTH), request(**factors)
    host.admit(0, whole)
    again = request(**factors)
    host.admit(1, again)
    row = 1
    for i in range(9):
        if i == preempted_after:  # another request uses the row, and leaves its counts there
            host.remove(1)
            host.admit(1, request(presence_penalty=1.0))
            host.step([1], make_logits(1, WIDTH))
            host.remove(1)
            row = 2 if preempted_after == 1 else 1
            host.admit(row, again)
        host.step([0, row], make_logits(1, WIDTH, seed=i, scale=0.7).expand(2, -1))
    assert whole.tokens == again.tokens
    assert torch.equal(host.rows.counts.words[0], host.rows.counts.words[row])


def test_counts_that_are_not_rebuilt_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalties.PenaltyCounts, "stage", lambda *arguments, **lengths: None)
    with pytest.raises(AssertionError):
        test_counts_are_rebuilt_after_readmission(5)


def test_a_bad_row_counts_nothing() -> None:
    host, one = Host(1, WIDTH), request(presence_penalty=1.0)
    host.admit(0, one)
    output = host.step([0], torch.full((1, WIDTH), torch.nan))
    assert output.bad.tolist() == [True]
    assert host.rows.counts.words[0].tolist() == counted([1, 2, 2, 3], [])
