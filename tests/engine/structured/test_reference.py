"""Seeded tokens under a grammar equal a plain loop: transformers' logits, a matcher, one draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from engine.messages.step_output import Finish
from sampling import reference
from sampling.noise import Purpose
from sampling.params import SamplingParams
from tests.engine.structured.constrained import (
    EAGLE,
    ENDS,
    PROMPTS,
    TOKENIZER,
    Reader,
    ll_tokenizer,
    make,
    of_regex,
    of_schema,
    request,
)

MAX_TOKENS = 24
MARGIN = 1e-3
"""The least relative gap between the two best keys of a draw. Float32 logits of two ways to sum
differ by some 1e-5, which moves a key by as much."""
CASES = {
    "schema": (of_schema("flat"), {}),
    "list, cut": (of_schema("list"), {"temperature": 0.7, "top_p": 0.9}),
    "regex, penalized": (of_regex("(ab|cd|[0-9])+"), {"presence_penalty": 0.7}),
}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    loaded = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="eager")
    return loaded.float().eval()  # type: ignore[no-any-return]


def plain_loop(
    model: torch.nn.Module, prompt: list[int], source: str, params: SamplingParams
) -> tuple[list[int], float]:
    """The tokens of choice 0, and the smallest margin of their draws."""
    matcher, margin = LLMatcher(ll_tokenizer(ends=ENDS), source, log_level=0), np.inf
    ids = list(prompt)
    while len(ids) < len(prompt) + MAX_TOKENS:
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double().numpy()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)
        logits = np.where(reference.allowed(bits, len(logits)), logits, -np.inf)
        counts = np.bincount(ids[len(prompt) :], minlength=len(logits))
        logits -= params.presence_penalty * (counts > 0)
        left = reference.kept(logits, temperature=params.temperature, top_p=params.top_p)
        assert params.seed is not None
        drawn = reference.race(
            np.where(left, logits, -np.inf),
            temperature=params.temperature,
            seed=params.seed,
            position=len(ids),
            choice=0,
            purpose=Purpose.TARGET,
        )
        margin = min(margin, drawn.margin)
        ids.append(drawn.token_id)
        if drawn.token_id in ENDS:
            break
        assert matcher.consume_token(drawn.token_id)
    return ids[len(prompt) :], float(margin)


@pytest.mark.parametrize("case", CASES)
def test_tokens_equal_a_plain_loop(case: str, model: torch.nn.Module) -> None:
    source, fields = CASES[case]
    requests = [
        request(handle, source, prompt, seed=40 + handle, max_tokens=MAX_TOKENS, **fields)
        for handle, prompt in enumerate(PROMPTS)
    ]
    plain = Reader(make())
    plain.run(*requests)
    coupled = Reader(make(speculation=EAGLE["greedy"]))
    greedy_requests = [
        request(9 + handle, source, prompt, temperature=0.0, max_tokens=MAX_TOKENS)
        for handle, prompt in enumerate(PROMPTS)
    ]
    coupled.run(*greedy_requests)
    alone = Reader(make())
    alone.run(*greedy_requests)
    assert coupled.tokens == alone.tokens, "greedy tokens do not depend on speculation"
    for handle, prompt in enumerate(PROMPTS):
        ids = TOKENIZER.encode(prompt)
        wanted, margin = plain_loop(model, ids, source, requests[handle].params)
        assert margin > MARGIN, "a near tie: choose another seed"
        assert plain.tokens[handle, 0] == wanted
        ended = Finish.STOP if wanted[-1] in ENDS else Finish.LENGTH
        assert plain.finish[handle, 0] == ended
