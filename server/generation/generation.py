"""A request while the engine works at it: submitted, read, aborted, accounted for."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from engine.messages.request import Request
from engine.messages.step_output import Finish
from engine.submission import EngineDeadError, Entry, Submission
from server.errors import ApiError
from server.generation.choice import ReplyChoice
from server.generation.prepare import PreparedRequest
from server.generation.prompts import Prompt
from server.generation.routes import Routes
from server.generation.tally import Tally
from server.http.failures import failed_request, lost_engine

logger = logging.getLogger("tailrace")

SUBMIT_SLICE = 32
"""Prompts submitted in one turn of the event loop."""

_FAILURES = frozenset(
    (
        *(Finish.ABORT, Finish.NAN, Finish.ERROR),
        *(Finish.EMPTY, Finish.GRAMMAR, Finish.TOO_COMPLEX, Finish.ADAPTER),
    )
)


class Recording(Protocol):
    """Keeps what comes of a request."""

    async def settle(self, error: ApiError | None) -> None:
        """Write how the request ended, before its client hears of it."""
        ...

    def close(self) -> None:
        """The request has ended, for whatever reason."""
        ...


class Generation:
    """One request between its submission to the engine and the end of its choices.

    `submit` sends the prompts, `update` turns what comes back into choices. It is a context
    manager: leaving it aborts what has not ended, whatever the reason, and counts everything in
    the metrics. Choices are made when the engine first reports of them, so that a request of
    thousands costs nothing until then.

    Attributes:
        prepared: the request.
        tally: what it took and gave so far.
        failure: the error that ended the request before all choices had ended.
        recording: keeps what comes; None for nobody.
    """

    def __init__(self, prepared: PreparedRequest) -> None:
        served = prepared.served
        self.prepared = prepared
        self.failure: ApiError | None = None
        self.recording: Recording | None = None
        self._engine = served.engine
        self._tokenizer = served.tokenizer
        self._admission = served.admission
        self._choices: dict[int, ReplyChoice] = {}
        self.tally = Tally(prepared, self._choices)
        self._is_admitted = False
        self._is_cancelled = False
        self._submissions: list[Submission] = []
        self._arrived = asyncio.Event()

    @property
    def choices(self) -> list[ReplyChoice]:
        """The choices in order; before the request has ended, those the engine has reported of."""
        return [self._choices[index] for index in sorted(self._choices)]

    @property
    def ended(self) -> bool:
        """Whether every choice has ended."""
        return self.tally.num_unfinished == 0

    async def submit(self) -> None:
        """Send every prompt, a slice of them in each turn of the event loop; log them if asked to.

        Whatever goes wrong closes the request.

        Raises:
            ApiError: the queue is full, and nothing was sent; or the engine is gone.
        """
        config = self.prepared.served.config
        if config.log_requests:
            name, params = self.prepared.spec.reply_id, self.prepared.spec.params
            for prompt in self.prepared.prompts:
                shown = prompt.token_ids.tolist() if prompt.text is None else prompt.text
                logger.info("%s: prompt %r, %s", name, shown[: config.max_log_len], params)
        try:
            self._admission.admit(self.prepared.num_choices)
            self._is_admitted = True
            for prompt_idx, prompt in enumerate(self.prepared.prompts):
                if prompt_idx and prompt_idx % SUBMIT_SLICE == 0:
                    await asyncio.sleep(0)
                submission = self._engine.submit(self._request(prompt_idx, prompt))
                submission.arrived = self._arrived
                self._submissions.append(submission)
                self._admission.enter(submission)
        except BaseException as error:
            self.close("abort" if isinstance(error, asyncio.CancelledError) else "error")
            if isinstance(error, EngineDeadError):
                raise lost_engine(error) from error
            raise

    def _request(self, prompt_idx: int, prompt: Prompt) -> Request:
        prepared, spec = self.prepared, self.prepared.spec
        wanted = spec.form.prompt_logprobs
        if wanted is not None and wanted.start >= len(prompt.token_ids):
            wanted = None  # none of the tokens that are asked for has a value
        return Request(
            handle=self._engine.new_handle(),
            prompt_token_ids=prompt.token_ids,
            params=spec.params,
            n=spec.n,
            num_before=prompt_idx * spec.n,
            max_tokens=1 if spec.form.next_token_only else prompt.max_tokens,
            priority=spec.priority,
            emit_interval=prepared.emit_interval,
            prompt_logprobs=wanted,
            report_origins=spec.form.origins,
            cache_salt=spec.cache_salt,
            name=spec.name_of(prompt_idx),
            adapter=prepared.adapter,
            adapter_digest=spec.adapter_digest,
            grammar=prepared.grammar,
            thinking_budget=spec.constraints.budget,
            routes=spec.form.routes,
        )

    async def update(self) -> list[ReplyChoice]:
        """Wait for the choices that have changed since the last call; none once all have ended.

        Raises:
            ApiError: a choice failed, or the engine is gone.
        """
        while not self.ended:
            if self.failure is not None:
                raise self.failure
            self._arrived.clear()
            changed: list[ReplyChoice] = []
            try:
                for prompt_idx, submission in enumerate(self._submissions):
                    parts, entries = submission.take_prompt_parts(), submission.take()
                    if parts:
                        changed.append(self._choice(prompt_idx, 0))
                        changed[-1].prompt_parts += parts
                    if entries:
                        found = self._absorb(prompt_idx, submission, entries)
                        changed += [choice for choice in found if choice not in changed]
            except EngineDeadError as error:
                raise lost_engine(error) from error
            if changed:
                return changed
            await self._arrived.wait()
        return []

    def _absorb(
        self, prompt_idx: int, submission: Submission, entries: list[Entry]
    ) -> list[ReplyChoice]:
        changed: dict[int, ReplyChoice] = {}
        for entry in entries:
            choice = self._choice(prompt_idx, entry.choice)
            if choice.finish_reason is not None:
                if choice.awaits_routes and entry.finish != Finish.RUNNING:
                    changed[choice.index] = choice
                    self._finish(choice, submission, entry)
                continue
            choice.prompt_logprobs = submission.prompt_logprobs
            self.prepared.fingerprint.note(entry)
            self.tally.note(prompt_idx, entry)
            changed[choice.index] = choice
            before = choice.num_generated
            ended = choice.feed(entry)
            self.tally.num_generated += choice.num_generated - before
            if ended and entry.finish == Finish.RUNNING:  # a stop string ended it
                self._engine.abort(submission.handle, entry.choice)
                choice.awaits_routes = self.prepared.spec.form.routes is not None
            if choice.awaits_routes:  # they come when the engine has ended it too
                del changed[choice.index]
            elif ended:
                self._finish(choice, submission, entry)
            elif entry.finish in _FAILURES:
                self.failure = self.failure or failed_request(entry.finish, entry.error)
        if submission.finished:
            self._admission.leave(submission)
        return list(changed.values())

    def _choice(self, prompt_idx: int, i: int) -> ReplyChoice:
        """Choice i of a prompt, made at the first call."""
        index = prompt_idx * self.prepared.spec.n + i
        if (known := self._choices.get(index)) is not None:
            return known
        form = self.prepared.spec.form
        detokenizer = self._tokenizer.detokenizer(
            skip_special_tokens=form.skip_special_tokens,
            between=form.spaces_between,
            context=self.prepared.prompts[prompt_idx].token_ids[-8:].tolist(),
        )
        self._choices[index] = choice = ReplyChoice(index, prompt_idx, form, detokenizer)
        return choice

    def _finish(self, choice: ReplyChoice, submission: Submission, entry: Entry) -> None:
        """Count a choice that ended, and take what is reported at its end."""
        if (routes := submission.routes.pop(entry.choice, None)) is not None:
            num_prompt = len(self.prepared.prompts[choice.prompt_idx].token_ids)
            choice.routes = Routes.of(routes, num_prompt + choice.num_shown)
        self._admission.release(1)
        self.tally.finish(choice)

    def cancel(self, error: ApiError) -> None:
        """Let whoever waits for choices get this error."""
        if not self.ended and self.failure is None:
            self.failure = error
            self._is_cancelled = True
            self._arrived.set()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close("abort" if isinstance(error, asyncio.CancelledError) else "error")

    def close(self, reason: str) -> None:
        """Abort what has not ended and account for it as `reason`; twice does no harm."""
        recording, self.recording = self.recording, None
        if recording is not None:
            recording.close()
        if not self._is_admitted:
            return
        self._is_admitted = False
        for submission in self._submissions:
            if not submission.finished:
                self._engine.abort(submission.handle)
            self._admission.leave(submission)
        self._admission.release(self.tally.num_unfinished)
        self.tally.close("abort" if self._is_cancelled else reason)
