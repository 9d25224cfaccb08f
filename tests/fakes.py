"""An engine without a model and a tokenizer of bytes: the whole HTTP side runs in milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from engine.arrays import LogprobArrays
from engine.contracts.adapters import NamedAdapter
from engine.contracts.control import (
    AnyCommand,
    ControlReply,
    EngineState,
    LoadAdapter,
    UnloadAdapter,
)
from engine.contracts.info import EngineInfo
from engine.contracts.weights import WeightReply
from engine.errors import ControlError
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import ChoiceRoutes, Finish, Origin, PromptLogprobs, StepOutput
from engine.planning.timings import Timings
from engine.stats import EngineStats
from engine.submission import EngineDeadError, Submission, deliver_output
from server.text.token_bytes import _ALPHABET
from server.text.tokenizer import FastTokenizer
from tests.fake_values import (
    BLANK,
    VOCAB_SIZE,
    item_scores,
    prompt_logprobs_of,
    score,
    stack,
    value_row,
)

EOS, BOS, SPECIAL = 256, 257, 258
_TOLD = (Finish.ERROR, Finish.GRAMMAR, Finish.TOO_COMPLEX)
"""Ends that come with a message."""

Script = Callable[[Request, int, int], "int | Finish"]


def byte_backend(*, with_bos: bool = False) -> Tokenizer:
    """Ids 0 to 255 are bytes; three special tokens follow."""
    backend = Tokenizer(models.BPE(vocab=dict(_ALPHABET), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<bos>", "<special>"])
    if with_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", BOS)]
        )
    return backend


def byte_tokenizer(*, with_bos: bool = False) -> FastTokenizer:
    """What the server is given in tests."""
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": None, "chat_template": None}
    return FastTokenizer(byte_backend(with_bos=with_bos), dict(names))


def echo(request: Request, choice: int, position: int) -> int:
    """The default script: the prompt again, choice c from its c-th token on."""
    prompt = request.prompt_token_ids
    return int(prompt[(position + choice) % len(prompt)])


def says(text: str, then: int | Finish = EOS) -> Script:
    """A script that writes `text` and ends."""
    raw = text.encode()
    return lambda request, choice, position: raw[position] if position < len(raw) else then


@dataclass
class _Running:
    request: Request
    choice: int
    began: float = field(default_factory=time.perf_counter)
    queued_at: float = field(default_factory=time.monotonic)
    started_at: float = 0.0
    drew_at: float = 0.0
    position: int = 0
    aborted: bool = False
    new: list[int] = field(default_factory=list)
    logprobs: list[LogprobArrays] = field(default_factory=list)


class FakeEngine:
    """An `EngineHandle`: one token a step for each of `max_rows` choices.

    Attributes:
        script: what each choice draws next: a token id, or the `Finish` it ends with.
        step_s: length of a step.
        reports_times: outputs report when choices were submitted, started and drew.
        speculates: tokens have the origins of `origin_at`, else all are drawn.
        requests: everything submitted.
        aborted: (handle, choice) pairs that were aborted while unfinished.
        commands: commands that were sent. refusal: raised by all of them, if any.
        weights_reply: what commands about weights give.
        keeps_adapters: commands load and unload adapters, in `state`.
        state: what holds the engine, as the server is reported.
        scored: scoring requests submitted. scoring_finish: how they end.
    """

    def __init__(
        self,
        script: Script = echo,
        *,
        step_s: float = 0.0,
        max_model_len: int = 256,
        max_rows: int = 64,
    ) -> None:
        self.info = EngineInfo(
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            eos_token_ids=(EOS,),
            max_rows=max_rows,
            num_blocks=100,
            block_size=16,
            dtype="float32",
            device="cpu",
        )
        self.stats: EngineStats | None = None
        self.state = EngineState()
        self.keeps_adapters = False
        self.commands: list[AnyCommand] = []
        self.refusal: ControlError | None = None
        self.weights_reply: WeightReply = None
        self.script = script
        self.step_s = step_s
        self.reports_times = self.speculates = False
        self.requests: list[Request] = []
        self.aborted: list[tuple[int, int]] = []
        self.scored: list[ScoringRequest] = []
        self.scoring_hangs = False
        self.scoring_finish = Finish.LENGTH
        self.closed = False
        self._handles = itertools.count(1)
        self._submissions: dict[int, Submission] = {}
        self._waiting: list[_Running] = []
        self._running: list[_Running] = []
        self._failure: str | None = None
        self._loop: asyncio.Task[None] | None = None
        self._num_steps = 0
        self._timings = Timings()

    # -- EngineHandle ------------------------------------------------------------------------

    def new_handle(self) -> int:
        return next(self._handles)

    def submit(self, request: Request) -> Submission:
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        self.requests.append(request)
        submission = self._submissions[request.handle] = Submission(request.handle, request.n)
        self._waiting += [_Running(request, choice) for choice in range(request.n)]
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run())
        return submission

    def score(self, request: ScoringRequest) -> Submission:
        """Answered a step later, or never while `scoring_hangs`."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        self.scored.append(request)
        submission = self._submissions[request.handle] = Submission(request.handle, 1)
        if not self.scoring_hangs:
            asyncio.get_running_loop().call_later(self.step_s, self._finish_scoring, request)
        return submission

    def _finish_scoring(self, request: ScoringRequest) -> None:
        if submission := self._submissions.pop(request.handle, None):
            submission.deliver_scores(item_scores(request, self.scoring_finish))

    def abort(self, handle: int, choice: int = -1) -> None:
        if handle in {request.handle for request in self.scored}:
            self.aborted.append((handle, choice))
        for row in self._waiting + self._running:
            if row.request.handle == handle and choice in (-1, row.choice) and not row.aborted:
                row.aborted = True
                self.aborted.append((handle, row.choice))

    async def control(self, command: AnyCommand) -> ControlReply:
        """Notes a command, which changes adapters alone; or raises `refusal`."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        self.commands.append(command)
        if self.refusal is not None:
            raise self.refusal
        if self.keeps_adapters and isinstance(command, LoadAdapter | UnloadAdapter):
            self._change_adapters(command)
        return ControlReply(handle=0, state=self.state, count=3, weights=self.weights_reply)

    def _change_adapters(self, command: LoadAdapter | UnloadAdapter) -> None:
        named = {each.name: each for each in self.state.adapters}
        before = named.pop(command.name, None)
        if isinstance(command, LoadAdapter):
            source = command.source
            digest = blake2b(source.path.encode() + source.tensors, digest_size=8).hexdigest()
            version = 1 if before is None else before.version + 1
            named[command.name] = NamedAdapter(command.name, source.path, version, digest)
        elif before is None:
            raise ControlError(f"no adapter {command.name!r} is loaded", "no_adapter")
        self.state = msgspec.structs.replace(self.state, adapters=tuple(named.values()))

    @property
    def has_ended(self) -> bool:
        return self._failure is not None

    def failure(self) -> str | None:
        return self._failure

    async def close(self) -> None:
        self.closed = True
        if self._loop is not None:
            self._loop.cancel()

    # -- levers of tests ---------------------------------------------------------------------

    def die(self, reason: str = "killed") -> None:
        """As after kill -9: every reader gets an error, nothing more is taken."""
        self._failure = reason
        for submission in self._submissions.values():
            submission.fail(EngineDeadError(reason))
        self._submissions.clear()
        self._waiting.clear()
        self._running.clear()

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._running and not self._waiting

    # -- the loop ----------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.idle:
            await asyncio.sleep(self.step_s)
            self._step()

    def _step(self) -> None:
        prompt_logprobs = []
        while self._waiting and len(self._running) < self.info.max_rows:
            row = self._waiting.pop(0)
            row.started_at = time.monotonic()
            self._running.append(row)
            if row.choice == 0 and row.request.prompt_logprobs is not None:
                prompt_logprobs.append(prompt_logprobs_of(row.request))
        ended = [(row, Finish.ABORT) for row in self._waiting if row.aborted]
        self._waiting = [row for row in self._waiting if not row.aborted]
        entries = ended + [(row, self._advance(row)) for row in self._running]
        self._running = [row for row, finish in entries if finish == Finish.RUNNING]
        self._num_steps += 1
        self._timings.stepped(len(entries))
        for row, _ in entries:
            if row.choice == 0 and row.position == 1 and not row.aborted:
                self._timings.first_token(time.perf_counter() - row.began)
        due = [e for e in entries if e[1] or len(e[0].new) >= e[0].request.emit_interval]
        output = _output(due, prompt_logprobs, self._statistics(), self.speculates)
        if self.reports_times:
            stamps = [(row.queued_at, row.started_at, row.drew_at) for row, _ in due]
            times = np.array(stamps, dtype=np.float64).reshape(len(due), 3)
            output = msgspec.structs.replace(output, times=times)
        output = msgspec.structs.replace(output, weight_tag=self.state.weight_tag)
        for row, _ in due:
            row.new, row.logprobs = [], []
        self.stats = output.stats
        for handle in deliver_output(output, self._submissions):
            del self._submissions[handle]

    def _advance(self, row: _Running) -> Finish:
        params = row.request.params
        if row.aborted:
            return Finish.ABORT
        drawn = self.script(row.request, row.choice, row.position)
        if isinstance(drawn, Finish):
            return drawn
        row.new.append(drawn)
        wanted = (params.logprobs, params.logprob_token_ids, params.kept_logprob or None)
        if any(asked is not None for asked in wanted):
            values = value_row(len(row.request.prompt_token_ids) + row.position)
            ids = params.logprob_token_ids or ()
            row.logprobs.append(score(values, drawn, params.logprobs or 0, ids, row.position))
        row.position += 1
        row.drew_at = row.drew_at or time.monotonic()
        if drawn in params.stop_token_ids and row.position > params.min_tokens:
            return Finish.STOP
        return Finish.LENGTH if row.position >= row.request.max_tokens else Finish.RUNNING

    def _statistics(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_blocks_used=len(self._running),
            kv_blocks_total=self.info.num_blocks,
            num_steps=self._num_steps,
            num_preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            prompt_tokens_computed=0,
            nan_rows=0,
            timings=self._timings.stats(),
            sampler_rows={"native": self._num_steps},
        )


def origin_at(position: int) -> Origin:
    """Where the fake's tokens come from: each in turn from one place."""
    return Origin(position % len(Origin))


def routes_of(request: Request, choice: int, num_tokens: int) -> ChoiceRoutes:
    """Routes of all tokens but the last, by their places: of two layers, with one expert."""
    assert request.routes is not None
    start = request.routes.start
    places = np.arange(start, len(request.prompt_token_ids) + num_tokens - 1)
    ids = np.stack([places % 4, (places + 1) % 4], axis=1)[:, :, None].astype(np.uint8)
    weights = (ids / 4).astype(np.float32) if request.routes.has_weights else None
    return ChoiceRoutes(handle=request.handle, choice=choice, start=start, ids=ids, weights=weights)


def _output(
    due: list[tuple[_Running, Finish]],
    prompt_logprobs: list[PromptLogprobs],
    stats: EngineStats,
    speculates: bool,
) -> StepOutput:
    rows = [row for row, _ in due]
    logprobs = [each for row in rows for each in (row.logprobs or [BLANK] * len(row.new))]
    any_logprobs = any(row.logprobs for row in rows)
    codes = [origin_at(row.position - i) for row in rows for i in range(len(row.new), 0, -1)]
    any_origins = speculates and any(row.request.report_origins for row in rows)
    return StepOutput(
        handles=np.array([row.request.handle for row in rows], dtype=np.int64),
        choices=np.array([row.choice for row in rows], dtype=np.int32),
        num_new=np.array([len(row.new) for row in rows], dtype=np.int32),
        finish=np.array([finish for _, finish in due], dtype=np.uint8),
        num_cached=np.array([len(row.request.prompt_token_ids) // 2 for row in rows], np.int32),
        token_ids=np.array([t for row in rows for t in row.new], dtype=np.int32),
        logprobs=stack(logprobs) if any_logprobs else None,
        origins=np.array(codes, dtype=np.uint8) if any_origins else None,
        prompt_logprobs=prompt_logprobs,
        routes=[
            routes_of(row.request, row.choice, row.position)
            for row, finish in due
            if finish and row.request.routes is not None
        ],
        errors={row.request.handle: "it broke" for row, f in due if f in _TOLD},
        stats=stats,
    )
