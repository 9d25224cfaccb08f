"""What engines with drafters draw, beside what they should."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from engine.engine import Engine
from engine.messages.request import Request
from engine.stats import DraftStats
from sampling.params import SamplingParams
from sampling.selftest.statistics import chi_square
from tests.engine.exact import Target

ODDS = 1e-6
K, LENGTH, NUM_CHOICES = 3, 4, 3000
PROMPT = [3, 14, 15, 92, 65, 3]


def draw(
    engine: Engine,
    params: SamplingParams,
    length: int = LENGTH,
    count: int = NUM_CHOICES,
    prompt_ids: list[int] = PROMPT,
) -> tuple[Counter[tuple[int, ...]], DraftStats]:
    prompt = np.array(prompt_ids, dtype=np.int32)
    engine.submit(
        b"",
        Request(
            handle=0,
            prompt_token_ids=prompt,
            params=params,
            n=count,
            max_tokens=length,
            emit_interval=16,
        ),
    )
    counts: Counter[tuple[int, ...]] = Counter()
    while engine.has_work:
        for _, output in engine.step():
            assert (output.num_new == length).all()
            counts.update(map(tuple, output.token_ids.reshape(-1, length).tolist()))
    assert counts.total() == count
    stats = engine.stats().drafts
    assert stats is not None
    return counts, stats


def p_value(counts: Counter[tuple[int, ...]], target: Target) -> float:
    sequences = dict(target.sequences(len(next(iter(counts)))))
    assert set(counts) <= set(sequences)
    observed = torch.tensor([counts[sequence] for sequence in sequences])
    wanted = torch.tensor(list(sequences.values()), dtype=torch.float64)
    return chi_square(observed, wanted, ODDS).p_value
