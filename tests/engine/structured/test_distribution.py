"""Draws under a grammar have the model's probabilities, restricted to it and renormalised.

Every sequence of tokens that the grammar allows is enumerated by a matcher and put through
transformers' model, so that all have a known probability. First tokens, first pairs and whole
sequences, whose last tokens are ends, are compared with it by chi-square. Each comparison has odds
of 1e-6 of a false alarm, a run of all cases 3e-5.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from msgspec import structs
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from sampling import reference
from sampling.params import SamplingParams
from sampling.selftest.statistics import chi_square
from tests.engine.exact import distribution
from tests.engine.structured.constrained import (
    EAGLE,
    ENDS,
    TOKENIZER,
    Reader,
    ll_tokenizer,
    make,
    of_regex,
    request,
)

ODDS = 1e-6
NUM_CHOICES = 600
TEXT = "x = ["
SOURCE = of_regex("(x|1|self)(, |\\.)(a|0|None)\\]?")
PARAMS = {
    "T 1": SamplingParams(seed=51),
    "T 0.7, top-p": SamplingParams(seed=52, temperature=0.7, top_p=0.9),
    "penalties": SamplingParams(
        seed=53, repetition_penalty=1.4, presence_penalty=0.8, frequency_penalty=0.5
    ),
}
SPECULATIONS = {"none": None} | {f"eagle {k}": v for k, v in EAGLE.items()}
QUICK = {("none", "penalties"), ("eagle greedy", "T 0.7, top-p")}
CASES = [
    pytest.param(speculation, name, marks=[] if (speculation, name) in QUICK else pytest.mark.slow)
    for speculation in SPECULATIONS
    for name in PARAMS
]
Sequence = tuple[int, ...]


class GrammarTarget:
    """What choices under `SOURCE` must draw, by enumeration.

    Attributes:
        sequences: each whole sequence of tokens, its end included, and its probability.
    """

    def __init__(self, model: torch.nn.Module, params: SamplingParams) -> None:
        self._prompt, self._params = TOKENIZER.encode(TEXT), params
        self._compiled = LLMatcher(ll_tokenizer(ends=ENDS), SOURCE, log_level=0)
        self.sequences: dict[Sequence, float] = {}
        prefixes: dict[Sequence, float] = {(): 1.0}
        while prefixes:
            with torch.inference_mode():
                inputs = torch.tensor([self._prompt + list(prefix) for prefix in prefixes])
                logits = model(inputs, use_cache=False).logits[:, -1].double().numpy()
            longer: dict[Sequence, float] = {}
            for (prefix, before), row in zip(prefixes.items(), logits, strict=True):
                for token, p in self._next_token(prefix, row).items():
                    found = self.sequences if token in ENDS else longer
                    found[*prefix, token] = before * p
            prefixes = longer

    def _next_token(self, prefix: Sequence, logits: np.ndarray) -> dict[int, float]:
        """p of each id that may follow a prefix, by textbook masks, penalties and filters."""
        matcher = self._compiled.deep_copy()
        assert matcher.consume_tokens(list(prefix))
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)
        masked = np.where(reference.allowed(bits, len(logits)), logits, -np.inf)
        weights = distribution(masked, self._prompt, prefix, self._params)
        return {token: float(weights[token]) for token in np.flatnonzero(weights).tolist()}

    def p_value(self, drawn: list[Sequence], length: int | None) -> float:
        """How likely draws are to be as far off as these, by their first `length` tokens."""
        wanted: Counter[Sequence] = Counter()
        for sequence, p in self.sequences.items():
            wanted[sequence[:length]] += p  # type: ignore[assignment]
        counts = Counter(sequence[:length] for sequence in drawn)
        assert set(counts) <= set(wanted)
        observed = torch.tensor([counts[cell] for cell in wanted])
        probabilities = torch.tensor(list(wanted.values()), dtype=torch.float64)
        return chi_square(observed, probabilities, ODDS).p_value


@pytest.mark.parametrize(("speculation", "name"), CASES)
def test_draws_have_the_restricted_probabilities(speculation: str, name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="eager").float()
    target = GrammarTarget(model, PARAMS[name])
    assert len(target.sequences) > 5
    assert sum(target.sequences.values()) == pytest.approx(1.0)
    reader = Reader(
        engine := make(max_rows=96, max_step_tokens=512, speculation=SPECULATIONS[speculation])
    )
    asked = request(0, SOURCE, TEXT, n=NUM_CHOICES, max_tokens=12, emit_interval=16)
    params = structs.replace(PARAMS[name], stop_token_ids=ENDS, constrained=True)
    reader.run(structs.replace(asked, params=params))
    drawn = [tuple(ids) for ids in reader.tokens.values()]
    assert len(drawn) == NUM_CHOICES
    for length in (1, 2, None):
        assert target.p_value(drawn, length) > ODDS
    stats = engine.stats().drafts
    if stats is not None:
        assert 0.02 < stats.num_accepted / stats.num_draft_tokens < 0.98
