"""Logprobs of a prompt's own tokens equal transformers', however the prompt is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.arrays import LogprobArrays
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.messages.request import PromptLogprobsParams, Request
from engine.runner import logit_chunks
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.tiny_models import VOCAB, write_model

START, EXPLICIT = 2, (5, 90)


def reported(folder: Path, prompt: list[int], step_tokens: int) -> LogprobArrays:
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), device="cpu", dtype="float32"),
            cache=CacheConfig(num_blocks=40),
            scheduler=SchedulerConfig(max_rows=4, max_step_tokens=step_tokens),
        )
    )
    # Another row's tokens come before the prompt's in the first step.
    for handle, wanted in ((0, None), (1, PromptLogprobsParams(start=START, token_ids=EXPLICIT))):
        request = Request(
            handle=handle,
            prompt_token_ids=np.array(prompt[: None if wanted else 1], dtype=np.int32),
            params=SamplingParams(temperature=0.0),
            max_tokens=8,
            prompt_logprobs=wanted,
        )
        engine.submit(b"", request)
        engine.step()
    found: list[LogprobArrays] = []
    while engine.has_work:
        for _, output in engine.step():
            found += [each.logprobs for each in output.prompt_logprobs]
    [logprobs] = found
    return logprobs


@pytest.mark.parametrize("positions_at_once", [1, 3, 1000])
@pytest.mark.parametrize("step_tokens", [16, 512])
def test_values_equal_transformers(
    step_tokens: int, positions_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt is cut into steps, and the hidden states of a step into chunks of the LM head."""
    monkeypatch.setattr(logit_chunks, "LOGITS_BYTES", positions_at_once * 4 * VOCAB)
    peer = write_model("llama", tmp_path)
    prompt = np.random.default_rng(3).integers(2, VOCAB, 40).tolist()
    with torch.inference_mode():
        table = peer(torch.tensor([prompt])).logits[0, START - 1 : -1].double().log_softmax(-1)
    targets = torch.tensor(prompt[START:])
    got = reported(tmp_path, prompt, step_tokens)
    wanted = table.gather(1, targets[:, None])[:, 0].numpy()
    # Float32 forwards in different orders of summation: logits agree to about 1e-5.
    np.testing.assert_allclose(got.chosen, wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(got.explicit, table[:, list(EXPLICIT)].numpy(), rtol=0, atol=1e-4)
