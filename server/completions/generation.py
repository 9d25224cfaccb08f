"""One HTTP request at the engine: its prompts submitted, its choices fed, its end accounted."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any

import numpy as np

from engine.client import EngineHandle
from engine.request import (
    Finish,
    PromptLogprobsParams,
    Request,
)
from engine.stats import DraftStats
from engine.submission import EngineDeadError, Entry, Submission
from server.completions.choice import ReplyChoice
from server.completions.prepare import Job
from server.completions.prompts import Prompt
from server.completions.render import Renderer
from server.errors import ApiError, engine_dead, shutting_down
from server.http.admission import AdmissionControl, ShutdownError
from server.metrics import Metrics
from server.text.tokenizer import Tokenizer


class Generation:
    """Submits a job's prompts and turns what comes back into choices.

    A context manager: leaving it aborts what has not ended, whatever the reason.

    Attributes:
        choices: prompt by prompt, `n` each.
        num_cached: prompt tokens served from the prefix cache, by prompt.
        failure: what ended the request before all choices had ended.
    """

    def __init__(
        self,
        job: Job,
        *,
        engine: EngineHandle,
        tokenizer: Tokenizer,
        admission: AdmissionControl,
        metrics: Metrics,
    ) -> None:
        self.job = job
        self.renderer = Renderer(job, tokenizer)
        self.num_cached = [0] * len(job.prompts)
        self._engine = engine
        self._admission = admission
        self._metrics = metrics
        self._began = time.perf_counter()
        self.failure: ApiError | None = None
        self.choices = [
            self._choice(prompt_idx, i, tokenizer)
            for prompt_idx in range(len(job.prompts))
            for i in range(job.n)
        ]
        self._num_unfinished = len(self.choices)
        self._tickets: list[Submission] = []
        self._arrived = asyncio.Event()

    def _choice(self, prompt_idx: int, i: int, tokenizer: Tokenizer) -> ReplyChoice:
        form = self.job.form
        detokenizer = tokenizer.detokenizer(
            skip_special_tokens=form.skip_special_tokens,
            between=form.spaces_between,
            context=self.job.prompts[prompt_idx].token_ids[-8:].tolist(),
        )
        return ReplyChoice(prompt_idx * self.job.n + i, prompt_idx, form, detokenizer)

    def submit(self) -> None:
        """Send every prompt, or raise `ApiError` and send none."""
        self._admission.check(len(self.job.prompts))
        try:
            for prompt in self.job.prompts:
                submission = self._engine.submit(self._request(prompt))
                submission.arrived = self._arrived
                self._tickets.append(submission)
                self._admission.enter(submission)
        except EngineDeadError as error:
            raise lost(error) from error

    def _request(self, prompt: Prompt) -> Request:
        job = self.job
        return Request(
            handle=self._engine.new_handle(),
            prompt_token_ids=prompt.token_ids,
            params=job.params,
            n=job.n,
            max_tokens=1 if job.form.next_token_only else prompt.max_tokens,
            priority=job.priority,
            emit_interval=job.emit_interval,
            prompt_logprobs=_prompt_logprobs(job.form.prompt_logprobs, prompt),
            cache_salt=job.cache_salt,
        )

    async def update(self) -> list[ReplyChoice]:
        """Choices that got something since the last call, none once all have ended.

        Raises `ApiError`.
        """
        while not self.ended:
            if self.failure is not None:
                raise self.failure
            self._arrived.clear()
            changed: list[ReplyChoice] = []
            try:
                for prompt_idx, submission in enumerate(self._tickets):
                    if entries := submission.take():
                        changed += self._absorb(prompt_idx, submission, entries)
            except EngineDeadError as error:
                raise lost(error) from error
            if changed:
                return changed
            await self._arrived.wait()
        return []

    def _absorb(
        self, prompt_idx: int, submission: Submission, entries: list[Entry]
    ) -> list[ReplyChoice]:
        if submission.prompt_logprobs is not None:
            self.renderer.prompt_logprobs[prompt_idx] = submission.prompt_logprobs
        changed: dict[int, ReplyChoice] = {}
        for entry in entries:
            choice = self.choices[prompt_idx * self.job.n + entry.choice]
            if choice.finish_reason is not None:
                continue
            self.num_cached[prompt_idx] = max(self.num_cached[prompt_idx], entry.num_cached)
            changed[choice.index] = choice
            if choice.feed(entry):
                self._finish(choice, submission, entry)
            elif entry.finish in _FAILURES:
                self.failure = self.failure or failure_of(entry.finish, entry.error)
        if submission.finished:
            self._admission.leave(submission)
        return list(changed.values())

    def _finish(self, choice: ReplyChoice, submission: Submission, entry: Entry) -> None:
        """Count a choice that ended, and end it at the engine where we were first to know."""
        self._num_unfinished -= 1
        if entry.finish == Finish.RUNNING:
            self._engine.abort(submission.handle, entry.choice)
        self._metrics.finished[choice.finish_reason or "error"].inc()
        self._metrics.generation_lens.observe(choice.num_generated)

    def usage(self) -> dict[str, Any]:
        """Tokens in and out so far."""
        num_prompt = sum(len(prompt.token_ids) for prompt in self.job.prompts)
        num_generated = sum(choice.num_generated for choice in self.choices)
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_generated,
            "total_tokens": num_prompt + num_generated,
        }
        if self.job.usage_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(self.num_cached)}
        return usage

    def metrics(self) -> dict[str, Any] | None:
        """What became of the drafts of all choices so far; None without a drafter."""
        counts = [choice.drafts for choice in self.choices if choice.drafts is not None]
        if not counts:
            return None
        stats = DraftStats.of(np.sum(counts, axis=0))
        return {
            "num_drafts": stats.num_drafts,
            "num_draft_tokens": stats.num_draft_tokens,
            "num_accepted_tokens": stats.num_accepted,
            "acceptance_per_position": stats.acceptance,
        }

    @property
    def ended(self) -> bool:
        """Whether every choice has ended."""
        return self._num_unfinished == 0

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close("abort" if isinstance(error, asyncio.CancelledError) else "error")

    def close(self, reason: str) -> None:
        """Abort what has not ended and account for it as `reason`."""
        for submission in self._tickets:
            if not submission.finished:
                self._engine.abort(submission.handle)
            self._admission.leave(submission)
        if not self._tickets:
            return
        metrics = self._metrics
        for choice in self.choices:
            if choice.finish_reason is None:
                metrics.finished[reason].inc()
        metrics.e2e.observe(time.perf_counter() - self._began)
        metrics.prompt_tokens.inc(sum(len(prompt.token_ids) for prompt in self.job.prompts))
        metrics.generation_tokens.inc(sum(choice.num_generated for choice in self.choices))
        for prompt in self.job.prompts:
            metrics.prompt_lens.observe(len(prompt.token_ids))
            metrics.params_max_tokens.observe(prompt.max_tokens)
        metrics.params_n.observe(self.job.n)
        self._tickets = []


def _prompt_logprobs(
    wanted: PromptLogprobsParams | None, prompt: Prompt
) -> PromptLogprobsParams | None:
    """Nothing for a prompt of one token: its only position follows nothing."""
    if wanted is None or wanted.start >= len(prompt.token_ids):
        return None
    return wanted


def lost(error: EngineDeadError) -> ApiError:
    """What clients are told when the engine is gone."""
    return shutting_down() if isinstance(error, ShutdownError) else engine_dead(str(error))


_FAILURES = frozenset((Finish.ABORT, Finish.NAN, Finish.ERROR))


def failure_of(finish: Finish, message: str | None) -> ApiError:
    """What clients are told of a request that the engine ended."""
    if finish == Finish.NAN:
        words = (
            "no token could be drawn: the model's logits had NaN or +Inf, or none finite was left, "
            "which contradicting masks do too"
        )
        return ApiError(500, words, code="nan_logits")
    if finish == Finish.ERROR:
        return ApiError(500, message or "the engine's step failed", code="engine_error")
    return ApiError(500, "the engine ended the request", code="aborted")
