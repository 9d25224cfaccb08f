"""An engine over a model folder, whose replies are compared with transformers' of whole texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.config import CacheConfig, Device, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish, ItemScores, PromptLogprobs
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams

BLOCK_SIZE = 16
LOGPROB_ERROR = 1e-4
"""What float32 logprobs may differ from transformers', which computes in another order."""


@dataclass
class Reply:
    """What a request got."""

    prompt: list[int]
    temperature: float = 0.0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_cached: int = 0
    finish: Finish = Finish.RUNNING
    of_prompt: PromptLogprobs | None = None

    @torch.inference_mode()
    def check(self, reference: Any) -> None:
        """Assert that all of it is what the reference makes of the whole text at once."""
        assert self.finish == Finish.LENGTH
        ids = torch.tensor([self.prompt + self.tokens])
        whole = whole_logprobs(reference, ids[0].tolist())
        of_text = whole[:-1].gather(1, ids[0, 1:, None])[:, 0]
        drawn = of_text[len(self.prompt) - 1 :]
        assert (drawn - torch.tensor(self.logprobs)).abs().max() < LOGPROB_ERROR
        best = whole[len(self.prompt) - 1 : -1].amax(-1)
        is_drawn = self.temperature > 0.0
        assert is_drawn or torch.all(drawn > best - LOGPROB_ERROR), "another token"
        if self.of_prompt is not None:
            got = torch.from_numpy(self.of_prompt.logprobs.chosen)
            assert len(got) == len(self.prompt) - 1 > 0
            assert (of_text[: len(got)] - got).abs().max() < LOGPROB_ERROR


@dataclass
class Server:
    """An engine, the reference of its model, and the replies it made."""

    engine: Engine
    reference: Any
    replies: dict[int, Reply] = field(default_factory=dict)

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 10,
        *,
        temperature: float = 0.0,
        **fields: Any,
    ) -> int:
        """Submit a request; returns its handle."""
        handle = len(self.replies)
        own = Request(
            handle=handle,
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            # A seed of its own: of texts drawn anew each time, one in many errs by more.
            params=SamplingParams(temperature=temperature, logprobs=0, seed=handle),
            max_tokens=max_tokens,
            **fields,
        )
        self.replies[handle] = Reply(list(prompt), temperature)
        self.engine.submit(b"", own)
        return handle

    def step(self) -> None:
        for _, output in self.engine.step():
            assert not output.errors, output.errors
            for of_prompt in output.prompt_logprobs:
                self.replies[of_prompt.handle].of_prompt = of_prompt
            start = 0
            for i, handle in enumerate(output.handles.tolist()):
                reply, end = self.replies[handle], start + int(output.num_new[i])
                reply.tokens += output.token_ids[start:end].tolist()
                if output.logprobs is not None:
                    reply.logprobs += output.logprobs.chosen[start:end].tolist()
                reply.num_cached = int(output.num_cached[i])
                reply.finish = Finish(int(output.finish[i]))
                start = end

    def score(self, asked: ScoringRequest) -> ItemScores:
        """Run a scoring request alone."""
        self.engine.score(b"", asked)
        ended = []
        while self.engine.has_work:
            for _, output in self.engine.step():
                ended += output.item_scores
        (scores,) = ended
        assert scores.error is None
        return scores

    def run(self) -> None:
        """Step until all is done, and check every reply."""
        while self.engine.has_work:
            self.step()
            self.engine.check()
        for reply in self.replies.values():
            reply.check(self.reference)

    def ask(self, prompt: Sequence[int], max_tokens: int = 10, **fields: Any) -> Reply:
        """Submit a request and run it."""
        handle = self.submit(prompt, max_tokens, **fields)
        self.run()
        return self.replies[handle]


@torch.inference_mode()
def whole_logprobs(reference: Any, text: Sequence[int]) -> torch.Tensor:
    """transformers' logprobs [T, vocab] of a whole text at once."""
    ids = torch.tensor([list(text)])
    logits: torch.Tensor = reference(input_ids=ids, use_cache=False).logits
    return logits[0].log_softmax(-1)


def serve(
    folder: Path,
    reference: Any,
    *,
    speculation: SpeculativeConfig | None = None,
    num_blocks: int = 60,
    num_snapshots: int = 24,
    prefix_caching: bool = True,
    device: Device = "cpu",
    **scheduler: Any,
) -> Server:
    """Start an engine over a folder, in float32."""
    config = EngineConfig(
        model=ModelConfig(model=str(folder), dtype="float32", device=device, max_model_len=128),
        cache=CacheConfig(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            num_snapshots=num_snapshots,
            prefix_caching=prefix_caching,
        ),
        scheduler=SchedulerConfig(**({"max_rows": 5, "max_step_tokens": 64} | scheduler)),
        speculation=speculation,
    )
    return Server(build_engine(config), reference)
