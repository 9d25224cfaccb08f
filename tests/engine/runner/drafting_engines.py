"""Engines with drafters, for tests of their runner."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from engine.arrays import LogprobArrays
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import Request
from engine.messages.step_output import Finish, StepOutput
from engine.speculative_config import RejectionSampleMethod, SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.tiny_models import VOCAB

MAX_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0)


def learn(table: torch.Tensor, replies: Replies) -> None:
    """Let the table often be right about these."""
    for reply in replies.values():
        table[reply.tokens[:-1], reply.tokens[1:]] += 4.0


def make(
    folder: Path,
    speculation: SpeculativeConfig | None,
    num_blocks: int = 200,
    prefix_caching: bool = True,
    **scheduler: Any,
) -> Engine:
    scheduler = {"max_rows": 6, "max_step_tokens": 32} | scheduler
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), device="cpu", max_model_len=128),
            cache=CacheConfig(block_size=8, num_blocks=num_blocks, prefix_caching=prefix_caching),
            scheduler=SchedulerConfig(**scheduler),
            speculation=speculation,
        )
    )


def config(
    k: int = 4, method: RejectionSampleMethod = "standard", **fields: Any
) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="eagle",
        model="none",
        num_speculative_tokens=k,
        rejection_sample_method=method,
        **fields,
    )


class Reply(msgspec.Struct):
    tokens: list[int] = []
    logprobs: list[LogprobArrays] = []
    finish: Finish = Finish.RUNNING


Replies = dict[tuple[int, int], Reply]
Tokens = dict[tuple[int, int], tuple[list[int], Finish]]
"""By request and choice."""


def run(engine: Engine, requests: list[Request], steps_between: int = 2) -> Replies:
    """Submit requests with steps between them, none for all at once, and read their replies."""
    replies: dict[tuple[int, int], Reply] = defaultdict(Reply)
    waiting = list(requests)
    while waiting or engine.has_work:
        while waiting:
            engine.submit(b"", waiting.pop(0))
            if steps_between:
                break
        for _ in range(max(steps_between, 1)):
            for _, output in engine.step():
                assert not output.errors, output.errors
                _read(output, replies)
    engine.check()
    return dict(replies)


def _read(output: StepOutput, replies: Replies) -> None:
    start = 0
    for i, handle in enumerate(output.handles.tolist()):
        end = start + int(output.num_new[i])
        reply = replies[handle, int(output.choices[i])]
        reply.tokens += output.token_ids[start:end].tolist()
        if output.logprobs is not None and end > start:
            reply.logprobs.append(output.logprobs.at(slice(start, end)))
        reply.finish = Finish(int(output.finish[i]))
        start = end


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    shared = rng.integers(2, VOCAB, 37).tolist()
    own = [rng.integers(2, VOCAB, n).tolist() for n in (1, 5, 16, 33, 50, 3)]
    return own[:3] + [shared + ids for ids in own]


def requests(params: list[SamplingParams], **fields: Any) -> list[Request]:
    fields = {"max_tokens": MAX_TOKENS} | fields
    return [
        Request(
            handle=handle,
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            params=params[handle % len(params)],
            **fields,
        )
        for handle, prompt in enumerate(prompts())
    ]


EVERYTHING = [
    SamplingParams(seed=1, temperature=0.8, top_p=0.9),
    SamplingParams(seed=2, temperature=1.3, top_k=20, min_p=0.02, presence_penalty=0.7),
    SamplingParams(seed=3, repetition_penalty=1.3, frequency_penalty=0.4),
    SamplingParams(seed=4, bad_words=((5,), (7, 9), (11, 12, 13)), temperature=1.5),
    SamplingParams(seed=5, min_tokens=8, stop_token_ids=tuple(range(2, 40))),
    SamplingParams(seed=6, logit_bias={3: 4.0, 8: -50.0}, allowed_token_ids=tuple(range(2, 60))),
    SamplingParams(temperature=0.0, presence_penalty=0.5, bad_words=((20, 21),)),
]


def tokens_of(replies: Replies) -> Tokens:
    return {key: (reply.tokens, reply.finish) for key, reply in replies.items()}


REPORTS: list[dict[str, Any]] = [
    {"logprobs": 5},
    {"logprobs": 0, "logprob_token_ids": (7, 3, 7)},
    {"logprob_token_ids": (1, 96), "logprobs_mode": "processed_logprobs"},
    {"logprobs": 3, "logprobs_mode": "raw_logits"},
    {"logprobs": 2, "logprob_token_ids": (4,), "logprobs_mode": "processed_logits"},
]


def assert_alike(spoken: Replies, plain: Replies, params: list[SamplingParams]) -> None:
    """Assert that replies have the tokens of plain decoding, and what was asked of them."""
    assert tokens_of(spoken) == tokens_of(plain)
    for (handle, choice), reply in plain.items():
        wanted = params[handle % len(params)]
        mine = joined(spoken[handle, choice], wanted)
        for name, values in joined(reply, wanted).items():
            np.testing.assert_allclose(mine[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


def joined(reply: Reply, params: SamplingParams) -> dict[str, np.ndarray]:
    """What a choice asked for, of all its tokens."""
    num_top, num_explicit = params.logprobs or 0, len(params.logprob_token_ids or ())
    arrays = {
        name: np.concatenate([getattr(part, name) for part in reply.logprobs])
        for name in ("chosen", "ranks")
    }
    for name, width in (("top_ids", num_top), ("top_logprobs", num_top)):
        arrays[name] = np.concatenate([getattr(p, name)[:, :width] for p in reply.logprobs])
    arrays["explicit"] = np.concatenate([p.explicit[:, :num_explicit] for p in reply.logprobs])
    assert all(len(values) == len(reply.tokens) for values in arrays.values())
    return arrays
