"""Engines around `ToyModel`, whose replies are checked against its one-pass reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from engine.batch import RequestRows
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.contracts.attention import AttentionSpec
from engine.contracts.drafter import VerifiedStep
from engine.contracts.named_weights import NamedWeights
from engine.engine import Engine
from engine.messages.request import Request
from engine.messages.step_output import Finish, StepOutput
from engine.speculative_config import SpeculativeConfig
from engine.startup import build, built_runner
from sampling.params import SamplingParams
from tests.engine.memory.toy import VOCAB, ToyModel, reference

BLOCK_SIZE = 4
LOGPROB_ERROR = 1e-5
"""Of float32 logits below 8 in magnitude, their softmax over 60 ids, and attention over 128 keys in
float32: each rounds to 2^-24 relative a few times, together below 64 * 2^-24 * 8 / 3."""

Rule = Callable[[int, int, int], int]
"""The draft of a row's text at a position, from its place in the step's drafts, the position and
the right token; -1 for none."""


def accepted(depth: int, position: int, right: int) -> int:
    return right


def refused(depth: int, position: int, right: int) -> int:
    return (right + 1) % VOCAB


def mixed(depth: int, position: int, right: int) -> int:
    """Right and wrong drafts, and steps with one draft or none, as the position has it."""
    kind = position * 7 % 5
    if kind == 0 or (kind == 1 and depth > 0):
        return -1
    return right if (position + depth) % 3 else (right + 1) % VOCAB


class ToyDrafter:
    """Knows what greedy rows go on with, and drafts by a rule from it."""

    feature_layers: tuple[int, ...] = ()
    attention_specs: Sequence[AttentionSpec] = ()
    draft_logits: torch.Tensor | None = None

    def __init__(self, num_tokens: int, rows: RequestRows, rule: Rule) -> None:
        self.num_tokens, self._rows, self._rule = num_tokens, rows, rule

    def named_weights(self) -> NamedWeights:
        return NamedWeights()

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        """It has no cache."""
        return ()

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        drafts = torch.full((len(step.last), self.num_tokens), -1, dtype=torch.int32)
        firsts = step.sampling.positions.tolist()
        for i, (row, first) in enumerate(zip(step.sampling.rows.tolist(), firsts, strict=True)):
            known = self._rows.token_ids[row, :first].tolist()
            for depth in range(self.num_tokens):
                right = int(reference(known)[-1].argmax())
                drafts[i, depth] = draft = self._rule(depth, first + depth, right)
                if draft < 0:
                    break
                known.append(draft)
        return drafts


@dataclass
class Reply:
    """What a choice got."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_cached: int = 0
    finish: Finish = Finish.RUNNING

    def check(self) -> None:
        """Assert that every token is the reference's, and its logprob."""
        assert self.finish in (Finish.LENGTH, Finish.STOP)
        whole = reference(self.prompt + self.tokens)[len(self.prompt) - 1 : -1]
        drawn = torch.tensor(self.tokens)[:, None]
        logprobs = whole.log_softmax(-1)
        of_drawn = logprobs.gather(1, drawn)[:, 0]
        assert torch.all(of_drawn > logprobs.amax(-1) - LOGPROB_ERROR), "another token"
        assert (of_drawn - torch.tensor(self.logprobs)).abs().max() < LOGPROB_ERROR


@dataclass
class Server:
    """An engine and the replies it made."""

    engine: Engine
    replies: dict[tuple[int, int], Reply] = field(default_factory=dict)
    num_submitted: int = 0

    def submit(self, prompt: Sequence[int], max_tokens: int = 12, **fields: Any) -> int:
        """Submit a greedy request; returns its handle."""
        params = SamplingParams(temperature=0.0, logprobs=0, **fields.pop("params", {}))
        handle, self.num_submitted = self.num_submitted, self.num_submitted + 1
        own = Request(
            handle=handle,
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            params=params,
            max_tokens=max_tokens,
            **fields,
        )
        for choice in range(own.n):
            self.replies[handle, choice] = Reply(list(prompt))
        self.engine.submit(b"", own)
        return handle

    def step(self) -> list[tuple[bytes, StepOutput]]:
        """Step, enter what choices got, and return all outputs."""
        outputs = self.engine.step()
        for _, output in outputs:
            start = 0
            for i, handle in enumerate(output.handles.tolist()):
                reply = self.replies[handle, int(output.choices[i])]
                end = start + int(output.num_new[i])
                reply.tokens += output.token_ids[start:end].tolist()
                if output.logprobs is not None:
                    reply.logprobs += output.logprobs.chosen[start:end].tolist()
                reply.num_cached = int(output.num_cached[i])
                reply.finish = Finish(int(output.finish[i]))
                start = end
            assert not output.errors, output.errors
        return outputs

    def run(self) -> None:
        """Step until all is done, and check every reply."""
        while self.engine.has_work:
            self.step()
            self.engine.check()
        self.check()

    def check(self) -> None:
        for reply in self.replies.values():
            if reply.finish != Finish.ABORT:
                reply.check()

    def ask(self, prompt: Sequence[int], max_tokens: int = 12, **fields: Any) -> Reply:
        """Submit a request and run it alone."""
        handle = self.submit(prompt, max_tokens, **fields)
        self.run()
        return self.replies[handle, 0]


Serve = Callable[..., Server]


def toy_server(
    monkeypatch: pytest.MonkeyPatch,
    *,
    rule: Rule | None = None,
    num_drafts: int = 3,
    num_blocks: int = 120,
    num_snapshots: int = 24,
    prefix_caching: bool = True,
    chunk: int = 1,
    **scheduler: Any,
) -> Server:
    """A server of the toy model.

    Args:
        rule: of the drafter; None has no drafter.
        chunk: of the toy's snapshots.
    """
    monkeypatch.setattr(build, "eos_token_ids", lambda *_: ())
    monkeypatch.setattr(
        built_runner,
        "make_drafter",
        lambda config, _, __, rows, *___: ToyDrafter(
            config.num_speculative_tokens, rows, rule or accepted
        ),
    )
    speculation = SpeculativeConfig(method="ngram", num_speculative_tokens=num_drafts)
    config = EngineConfig(
        model=ModelConfig(model="toy", device="cpu", max_model_len=128),
        cache=CacheConfig(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            num_snapshots=num_snapshots,
            prefix_caching=prefix_caching,
        ),
        scheduler=SchedulerConfig(**({"max_rows": 5, "max_step_tokens": 32} | scheduler)),
        speculation=speculation if rule else None,
    )
    parts = build.assemble(config, ToyModel(chunk=chunk), torch.device("cpu"))
    return Server(parts.engine())


def texts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens, every other of which begins as others do."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, VOCAB, longest).tolist()
    made = []
    for i in range(count):
        shared = int(rng.integers(0, longest - 2)) if i % 2 else 0
        own = int(rng.integers(1, longest - shared))
        made.append(base[:shared] + rng.integers(0, VOCAB, own).tolist())
    return made


def by_handle(server: Server) -> dict[int, list[Reply]]:
    """The replies of each request, in the order of its choices."""
    replies: dict[int, list[Reply]] = defaultdict(list)
    for (handle, _), reply in sorted(server.replies.items()):
        replies[handle].append(reply)
    return replies
