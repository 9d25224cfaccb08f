"""Replayed steps, eager steps and transformers agree; a step waits for nothing.

Float32 logits of the three differ in the order of sums only; prompts are such that no two highest
logits are closer than `GAP`. In bfloat16 a token is transformers' own where its logit is within
`MARGIN` of the highest: the tiny models' logits have a deviation of about 1 and their bfloat16
errors stay below a twentieth of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from demo import MODEL_FOLDER
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.runner.graphs.captured_batches import COMMON_NEEDS, covers, ladder
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from sampling.rows import PENALIZED, PROCESSED, RANDOM, SamplingNeeds
from tests.engine.tiny_models import FUSED, VOCAB, write_model
from tests.engine.traffic import one_a_step, request

GAP, MARGIN = 1e-5, 0.1
GREEDY = SamplingParams(temperature=0.0)
Tokens = dict[int, list[int]]


def test_the_ladder_wastes_little() -> None:
    for max_rows in (1, 2, 3, 7, 64, 100, 256, 300, 1024):
        sizes = ladder(max_rows)
        assert sizes[-1] == max_rows
        assert list(sizes) == sorted(set(sizes))
        for rows in range(1, max_rows + 1):
            padded = min(size for size in sizes if size >= rows)
            assert padded <= max(2 * rows, 1)
            assert rows <= 16 or padded <= 1.5 * rows


def test_needs_run_on_a_graph_that_does_more() -> None:
    greedy, drawn = COMMON_NEEDS[:2]
    assert covers(drawn, greedy)
    assert not covers(greedy, drawn)
    penalized = SamplingNeeds(flags=RANDOM | PENALIZED, greedy=False, num_top=0, num_explicit=0)
    assert any(covers(each, penalized) for each in COMMON_NEEDS)
    rare = SamplingNeeds(flags=RANDOM | PROCESSED, greedy=False, num_top=0, num_explicit=0)
    assert not any(covers(each, rare) for each in COMMON_NEEDS)
    many = SamplingNeeds(flags=0, greedy=True, num_top=40, num_explicit=0)
    assert not any(covers(each, many) for each in COMMON_NEEDS)


def engine_of(folder: Path, *, cuda_graphs: bool, max_rows: int = 6, **model: Any) -> Engine:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 128} | model
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), **settings),
            cache=CacheConfig(num_blocks=100),
            scheduler=SchedulerConfig(max_rows=max_rows, max_step_tokens=32),
            cuda_graphs=cuda_graphs,
        )
    )


def run(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, max_tokens: int = 24
) -> Tokens:
    """Requests arrive one a step."""
    fields: dict[str, Any] = {"params": params, "max_tokens": max_tokens}
    return one_a_step(engine, [request(i, ids, **fields) for i, ids in enumerate(prompts)])


def prompts_of(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(2, vocab_size, n).tolist() for n in (1, 5, 16, 33, 50, 3, 64, 40)]


@torch.inference_mode()
def greedy_of(peer: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt], device="cuda")
    for _ in range(count):
        logits = peer(ids, use_cache=False).logits[0, -1].float()
        top = logits.topk(2).values
        assert top[0] - top[1] > GAP, "a near tie: choose another seed"
        ids = torch.cat([ids, logits.argmax().view(1, 1)], dim=1)
    return ids[0, len(prompt) :].tolist()


@torch.inference_mode()
def gaps_of(peer: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """How far each token's logit is below the highest, given those before it."""
    ids = torch.tensor([prompt + tokens], device="cuda")
    logits: torch.Tensor = peer(ids).logits[0, len(prompt) - 1 : -1].float()
    return logits.max(dim=-1).values - logits.gather(1, ids[0, len(prompt) :, None])[:, 0]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*FUSED, "gpt2"])
def test_float32_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    peer, prompts = write_model(kind, tmp_path).cuda(), prompts_of(VOCAB)
    wanted = {i: greedy_of(peer, prompt, 24) for i, prompt in enumerate(prompts)}
    for cuda_graphs in (False, True):
        assert run(engine_of(tmp_path, cuda_graphs=cuda_graphs), prompts, GREEDY) == wanted


@pytest.mark.gpu
def test_bfloat16_tokens_of_the_demo_model_are_near_transformers() -> None:
    peer = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.bfloat16).cuda().eval()
    prompts = prompts_of(peer.config.vocab_size)
    settings: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 512}
    tokens = run(engine_of(MODEL_FOLDER, cuda_graphs=True, **settings), prompts, GREEDY)
    deviation = 0.0
    for handle, prompt in enumerate(prompts):
        deviation = max(deviation, float(gaps_of(peer, prompt, tokens[handle]).max()))
    assert deviation <= MARGIN


@pytest.mark.gpu
def test_replayed_and_eager_steps_draw_the_same_at_one_size(tmp_path: Path) -> None:
    write_model("qwen3", tmp_path)
    prompts = prompts_of(VOCAB)[:4]
    cases = [
        SamplingParams(temperature=0.9, seed=3),
        SamplingParams(temperature=0.9, seed=3, top_k=20, top_p=0.9),
        SamplingParams(temperature=0.9, seed=3, logprobs=5),
        SamplingParams(temperature=0.9, seed=3, presence_penalty=0.5),
    ]
    eager = engine_of(tmp_path, cuda_graphs=False, max_rows=4)
    graphs = engine_of(tmp_path, cuda_graphs=True, max_rows=4)
    for params in cases:
        assert run(graphs, prompts, params) == run(eager, prompts, params)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_no_step_waits_for_the_gpu(cuda_graphs: bool, dtype: str, no_waiting: None) -> None:
    """Prefill, mixed and decode steps, greedy and drawn, with logprobs and without."""
    engine = engine_of(MODEL_FOLDER, cuda_graphs=cuda_graphs, dtype=dtype)
    prompts = prompts_of(VOCAB)
    cases = [GREEDY, SamplingParams(temperature=0.9, top_k=20, top_p=0.9, logprobs=5)]
    for params in cases:
        run(engine, prompts, params, 8)  # compiles what is compiled on first use
    torch.cuda.set_sync_debug_mode("error")
    for params in cases:
        run(engine, prompts, params, 8)
