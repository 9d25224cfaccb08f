"""Every mode of the logprobs, of output and of prompt, against float64 computed step by step.

The bound is 1e-5 * max(1, |value|). Nothing here is random in outcome.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from sampling import reference
from sampling.batch import LogprobsOutput, SamplingBatch
from sampling.params import LogprobsMode, SamplingParams
from sampling.paths.prompt_logprobs import PromptReporter
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig
from sampling.vocab_shard import VocabShard

VOCAB, TOP, IDS = 300, 6, (4, 299, 4)
PROMPT, OUTPUT = 9, 4
MODES: tuple[LogprobsMode, ...] = (
    "raw_logprobs",
    "raw_logits",
    "processed_logprobs",
    "processed_logits",
)
PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.8, "presence_penalty": 0.6, "frequency_penalty": -0.4},
)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_p": 0.8},
    {"top_k": 40, "top_p": 0.95},
    {"min_p": 0.02},
)
EDITS: tuple[dict[str, Any], ...] = (
    {},
    {"logit_bias": {4: 3.0, 17: -2.0}, "bad_words": ((5,), (0, 7))},
)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
CASES = [
    SamplingParams(
        temperature=temperature,
        **filters,
        **penalties,
        **edits,
        min_tokens=0,
        seed=1,
        logprobs=TOP,
        logprob_token_ids=IDS,
    )
    for temperature, filters, penalties, edits in itertools.product(
        (0.0, 0.3, 1.0, 1.7), FILTERS, PENALTIES, EDITS
    )
]


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    """The model's logits before each position, float32 [PROMPT + OUTPUT, VOCAB]."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(PROMPT + OUTPUT, VOCAB, generator=generator) * 3 + 5


@pytest.fixture(scope="module")
def history() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 20, (PROMPT + OUTPUT,), generator=generator, dtype=torch.int32)


def wanted(
    raw: np.ndarray, before: np.ndarray, num_prompt: int, params: SamplingParams, mode: LogprobsMode
) -> np.ndarray:
    """The values that the mode reports after the tokens `before`, float64 [VOCAB]."""
    values = raw.astype(np.float64)
    if mode.startswith("processed"):
        for token, bias in params.logit_bias.items():
            values[token] += bias
        for *beginning, last in params.bad_words:
            if list(before[len(before) - len(beginning) :]) == beginning:
                values[last] = -np.inf
        output = before[num_prompt:]
        values = reference.penalize(
            values,
            np.bincount(output, minlength=VOCAB),
            np.isin(np.arange(VOCAB), before[:num_prompt]),
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
        )
        if params.temperature > 0:
            kept = reference.kept(
                values,
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
            )
            values = np.where(kept, values / params.temperature, -np.inf)
    return values - np.logaddexp.reduce(values) if mode.endswith("logprobs") else values


def check(out: LogprobsOutput, tables: list[np.ndarray], token_ids: list[int]) -> None:
    for i, (table, token) in enumerate(zip(tables, token_ids, strict=True)):
        order = np.lexsort((np.arange(VOCAB), -table))[:TOP]
        finite = table[order] > -np.inf
        assert (out.top_ids[i, :TOP].cpu().numpy() == order)[finite].all()
        for got, want in (
            (out.chosen[i].cpu(), table[token]),
            (out.top_logprobs[i, :TOP].cpu(), table[order]),
            (out.explicit[i, : len(IDS)].cpu(), table[list(IDS)]),
        ):
            have, due = np.atleast_1d(got.numpy()).astype(np.float64), np.atleast_1d(want)
            assert have.shape == due.shape
            assert (np.isneginf(have) == np.isneginf(due)).all()
            finite_ones = np.isfinite(due)
            error = np.abs(have[finite_ones] - due[finite_ones])
            assert (error <= 1e-5 * np.maximum(1, np.abs(due[finite_ones]))).all()


@pytest.mark.parametrize("mode", MODES)
def test_output(mode: LogprobsMode, logits: torch.Tensor, history: torch.Tensor) -> None:
    """All cases as one batch, each after two tokens of output."""
    known = PROMPT + 2
    rows = SamplingRows(
        len(CASES), VOCAB, torch.device("cpu"), history=history.expand(len(CASES), -1).clone()
    )
    cases = [SamplingParams(**{**_fields(case), "logprobs_mode": mode}) for case in CASES]
    for row, params in enumerate(cases):
        rows.add(row, params, seed=row, choice=0, prompt_len=PROMPT, num_tokens=known)
    rows.flush()
    rows_np = np.arange(len(cases), dtype=np.int32)
    batch = SamplingBatch(
        torch.from_numpy(rows_np), torch.full((len(cases),), known), rows_np, rows.needs(rows_np)
    )
    out = Sampler(SamplerConfig(), rows)(logits[known].expand(len(cases), -1).contiguous(), batch)
    assert out.logprobs is not None
    before = history[:known].numpy()
    tables = [wanted(logits[known].numpy(), before, PROMPT, params, mode) for params in cases]
    check(out.logprobs, tables, out.token_ids.tolist())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("device", DEVICES)
def test_prompt(
    mode: LogprobsMode, case: int, device: str, logits: torch.Tensor, history: torch.Tensor
) -> None:
    params, first, known = CASES[case], 3, history.to(device)
    reporter = PromptReporter(params, mode, TOP, shard=VocabShard.whole(VOCAB), history=known)
    ids = torch.tensor([IDS], device=device)
    out = reporter(logits[first:PROMPT].to(device), first, ids)
    tables = [
        wanted(logits[at].numpy(), history[:at].numpy(), at, params, mode)
        for at in range(first, PROMPT)
    ]
    check(out, tables, history[first:PROMPT].tolist())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", range(0, len(CASES), 7))
@pytest.mark.parametrize("device", DEVICES)
def test_lists_of_ids_and_whole_vocabularies(
    mode: LogprobsMode, case: int, device: str, logits: torch.Tensor, history: torch.Tensor
) -> None:
    """Each position has ids of its own, padded with -1; top lists are longer than kernels make."""
    params, first, known = CASES[case], 3, history.to(device)
    reporter = PromptReporter(params, mode, VOCAB, shard=VocabShard.whole(VOCAB), history=known)
    lists = torch.randint(0, VOCAB, (PROMPT - first, 5), generator=torch.Generator().manual_seed(1))
    lists[1, 3:] = -1
    out = reporter(logits[first:PROMPT].to(device), first, lists.to(device))
    for i, at in enumerate(range(first, PROMPT)):
        table = wanted(logits[at].numpy(), history[:at].numpy(), at, params, mode)
        due = np.where(lists[i] < 0, -np.inf, table[lists[i].numpy()])
        order = np.lexsort((np.arange(VOCAB), -table))
        tops = out.top_logprobs[i].cpu().double().numpy()
        for have, wants in (
            (out.explicit[i, :5].cpu().double().numpy(), due),
            (tops, table[order]),
        ):
            np.testing.assert_allclose(have, wants, rtol=1e-5, atol=1e-5)
        ids = out.top_ids[i].cpu().numpy()
        assert sorted(ids.tolist()) == list(range(VOCAB))
        np.testing.assert_allclose(table[ids], table[order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", DEVICES)
def test_what_counts_the_output_has_no_effect_on_a_prompt(
    mode: LogprobsMode, device: str, logits: torch.Tensor, history: torch.Tensor
) -> None:
    """`min_tokens` above all: the ends of text may be in a prompt, and are not banned there."""
    counting: dict[str, Any] = {
        "min_tokens": OUTPUT,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
    }
    known, outs = history.to(device), []
    for params in ({}, counting):
        asked = SamplingParams(stop_token_ids=IDS[:2], logprobs=TOP, **params)
        whole = VocabShard.whole(VOCAB)
        reporter = PromptReporter(asked, mode, TOP, shard=whole, history=known)
        ids = torch.tensor([IDS], device=device)
        outs.append(reporter(logits[3:PROMPT].to(device), 3, ids))
    for plain, counted in zip(*outs, strict=True):
        assert torch.equal(plain, counted)
    assert outs[1].explicit[:, : len(IDS)].isfinite().all()


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}
