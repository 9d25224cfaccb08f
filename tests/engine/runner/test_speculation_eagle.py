"""The demo model with its own EAGLE head draws from the demo model's distribution.

A few likely continuations are allowed, so that every sequence of them has a known probability; a
check has odds of 1e-6 of a false alarm.
"""

from __future__ import annotations

import msgspec
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.speculative_config import DraftSampleMethod, SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.exact import Target
from tests.engine.runner.drawn_drafts import ODDS, K, draw, p_value

TEXT, WORDS = "x = [", ("x", "1", "0", "self")
PARAMS = {
    "T 1": SamplingParams(seed=31),
    "T 0.7, top-p": SamplingParams(seed=32, temperature=0.7, top_p=0.9),
    "penalties": SamplingParams(
        seed=33, repetition_penalty=1.4, presence_penalty=0.8, frequency_penalty=0.5
    ),
}
CASES = [
    pytest.param(name, method, marks=[] if (name, method) == QUICK else pytest.mark.slow)
    for QUICK in [("penalties", "gumbel")]
    for name in PARAMS
    for method in ("greedy", "gumbel")
]


@pytest.mark.parametrize(("name", "sample_method"), CASES)
def test_sequences_have_the_targets_probabilities(
    name: str, sample_method: DraftSampleMethod
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    prompt = tokenizer.encode(TEXT)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="eager").float()
    allowed = tuple(tokenizer.encode(word)[0] for word in WORDS)
    params = msgspec.structs.replace(PARAMS[name], allowed_token_ids=allowed)
    target = Target(model, prompt, params, K)
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(model=str(MODEL_FOLDER), device="cpu", max_model_len=64),
            cache=CacheConfig(block_size=8, num_blocks=600),
            scheduler=SchedulerConfig(max_rows=96, max_step_tokens=512),
            speculation=SpeculativeConfig(
                method="eagle",
                model=str(EAGLE_FOLDER),
                num_speculative_tokens=K,
                draft_sample_method=sample_method,
            ),
        )
    )
    counts, stats = draw(engine, params, length=K, count=1000, prompt_ids=prompt)
    assert p_value(counts, target) > ODDS
    assert stats.num_accepted > 0
