"""Requests for an engine over `PagedFake`, and a reader that joins its outputs."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.engine import Engine
from engine.messages.request import Request
from engine.messages.step_output import ChoiceRoutes, Finish, Origin, PromptLogprobs, StepOutput
from sampling.params import SamplingParams
from tests.engine.paged_fake import VOCAB

FRONTEND = b"frontend"


class Inbox:
    """Joins step outputs per choice and insists on exactly one end each."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.finish: dict[tuple[int, int], Finish] = {}
        self.errors: dict[int, str] = {}
        self.prompt_logprobs: dict[int, PromptLogprobs] = {}
        self.prompt_parts: dict[int, list[PromptLogprobs]] = defaultdict(list)
        self.cached: dict[int, int] = {}
        self.drafts: dict[tuple[int, int], list[int]] = {}
        self.origins: dict[tuple[int, int], list[Origin]] = defaultdict(list)
        self.routes: dict[tuple[int, int], ChoiceRoutes] = {}
        self.versions: dict[tuple[int, int], list[str]] = defaultdict(list)
        self.tags: dict[tuple[int, int], list[str]] = defaultdict(list)

    def read(self, output: StepOutput) -> None:
        start = 0
        self.errors |= output.errors
        for logprobs in output.prompt_logprobs:
            if logprobs.is_part:
                self.prompt_parts[logprobs.handle].append(logprobs)
                continue
            assert logprobs.handle not in self.prompt_logprobs, "reported twice"
            self.prompt_logprobs[logprobs.handle] = logprobs
        for routes in output.routes:
            assert (routes.handle, routes.choice) not in self.finish, "routes after the end"
            self.routes[routes.handle, routes.choice] = routes
        for i, handle in enumerate(output.handles.tolist()):
            key = (handle, int(output.choices[i]))
            assert key not in self.finish, "an entry after the end"
            count = int(output.num_new[i])
            if count and output.weight_version not in self.versions[key]:
                self.versions[key].append(output.weight_version)
            if count and output.weight_tag not in self.tags[key]:
                self.tags[key].append(output.weight_tag)
            self.tokens[key] += output.token_ids[start : start + count].tolist()
            if output.origins is not None:
                codes = output.origins[start : start + count]
                self.origins[key] += map(Origin, codes.tolist())
            self.cached[handle] = int(output.num_cached[i])
            if output.drafts is not None:
                self.drafts[key] = output.drafts[i].tolist()
            start += count
            if output.finish[i]:
                self.finish[key] = Finish(int(output.finish[i]))
        assert start == len(output.token_ids)


def request(handle: int, prompt: list[int], **fields: Any) -> Request:
    """A request of at most 10 tokens that stops at token 0, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {"params": SamplingParams(stop_token_ids=(0,)), "max_tokens": 10}
    ids = np.array(prompt, dtype=np.int32)
    return Request(handle=handle, prompt_token_ids=ids, **(defaults | fields))


def step(engine: Engine, inbox: Inbox, num_steps: int = 1) -> None:
    for _ in range(num_steps):
        for _, output in engine.step():
            inbox.read(output)


def run(engine: Engine, inbox: Inbox, max_steps: int = 5000) -> None:
    """Step until the engine has no work left."""
    for _ in range(max_steps):
        if not engine.has_work:
            engine.check()
            return
        step(engine, inbox)
    raise AssertionError("the engine does not come to an end")


def one_a_step(
    engine: Engine, requests: Iterable[Request], num_steps: int = 1
) -> dict[int, list[int]]:
    """The tokens of requests of one choice that arrive one by one, by handle.

    Args:
        num_steps: from one to the next.
    """
    tokens: dict[int, list[int]] = defaultdict(list)
    waiting = deque(requests)
    while waiting or engine.has_work:
        if waiting:
            engine.submit(FRONTEND, waiting.popleft())
        for _ in range(num_steps):
            for _, output in engine.step():
                assert not output.errors, output.errors
                handles = np.repeat(output.handles, output.num_new)
                for handle, token in zip(handles.tolist(), output.token_ids.tolist(), strict=True):
                    tokens[handle].append(token)
    engine.check()
    return tokens


def prompts(rng: random.Random, count: int, longest: int) -> list[list[int]]:
    """Prompts of fewer than `longest` tokens, many of which begin alike."""
    base = [rng.randrange(1, VOCAB) for _ in range(longest)]
    made = []
    for _ in range(count):
        shared = rng.randrange(0, longest // 2)
        own = rng.randrange(1, longest - shared)
        made.append(base[:shared] + [rng.randrange(1, VOCAB) for _ in range(own)])
    return made


def run_with_aborts(engine: Engine, seed: int) -> tuple[Inbox, dict[int, list[int]]]:
    """Run 30 prompts while choices are aborted; returns the replies and each handle's prompt."""
    rng = random.Random(seed)
    inbox, live = Inbox(), dict[int, list[int]]()
    for handle, prompt in enumerate(prompts(rng, 30, 30)):
        live[handle] = prompt
        engine.submit(FRONTEND, request(handle, prompt, n=rng.choice([1, 2])))
        if rng.random() < 0.5:
            engine.abort(FRONTEND, rng.choice(list(live)), rng.choice([-1, 0, 1]))
        step(engine, inbox, rng.randrange(3))
        engine.check()
    run(engine, inbox)
    return inbox, live
