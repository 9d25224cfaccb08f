"""What the engine tells a frontend: one `StepOutput` a step. No torch."""

from __future__ import annotations

import enum

import msgspec

from engine.arrays import (
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    LogprobArrays,
    RouteIds,
    UInt8Array,
)
from engine.contracts.control import FIRST_VERSION, ControlReply, EngineState
from engine.stats import EngineStats


class Finish(enum.IntEnum):
    """Why a choice ended; RUNNING while it has not."""

    RUNNING = 0
    STOP = 1
    """An id of `stop_token_ids` was drawn."""
    LENGTH = 2
    """`max_tokens` or the context length was reached."""
    ABORT = 3
    """The frontend aborted it (a disconnect, or a stop string it saw)."""
    NAN = 4
    """The model's logits had NaN, +Inf or no finite value."""
    ERROR = 5
    """The step failed; `StepOutput.errors` says why."""
    EMPTY = 6
    """The request's own masks, its grammar's among them, left no token that could be drawn."""
    GRAMMAR = 7
    """The grammar could not be compiled or followed; `StepOutput.errors` says why."""
    TOO_COMPLEX = 8
    """The grammar went over its limits at one token; `StepOutput.errors` says over which."""
    CANCELED = 9
    """A command ended it, for whoever sent it: it has what it had drawn."""
    ADAPTER = 10
    """The adapter is not there any more; `StepOutput.errors` says why."""


class Origin(enum.IntEnum):
    """Where a generated token came from."""

    DRAWN = 0
    """A step without drafts for its row."""
    ACCEPTED = 1
    """An accepted draft."""
    RECOVERED = 2
    """It replaces a refused draft."""
    BONUS = 3
    """It follows the last draft, all of which were accepted."""


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt logprobs of one request: positions start .. prompt_len - 1, or a part of them.

    Attributes:
        is_part: further parts came before or will come.
    """

    handle: int
    start: int
    logprobs: LogprobArrays
    is_part: bool = False


class ChoiceRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The experts that tokens of a choice took: T tokens, of prompt and choice together.

    Its last token was drawn, and took none. Of a choice that ended while it held no row there are
    no routes.

    Attributes:
        choice: its index within the request.
        start: of the first token.
        ids: uint8 or int16 [T, L, k], of each of the model's layers; zeros in one without experts.
        weights: float32 [T, L, k], where asked for.
    """

    handle: int
    choice: int
    start: int
    ids: RouteIds
    weights: Float32Array | None = None


class ItemScores(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a scoring request: P positions were read, or none where it failed.

    Attributes:
        finish: LENGTH where all went well.
        num_cached: tokens of the query served from the prefix cache.
        values: float32 [P, J], raw logprobs of the position's ids; undefined at padding.
        others: float32 [P], log of the mass of all other ids.
        best_ids: int32 [P], the best of all other ids.
        best: float32 [P], its logprob.
        log_sums: float64 [P], the log-sum-exp of each position's logits.
        hidden: float32 [P, H], hidden states after the final norm, where these were read; None
            otherwise.
        error: the message of `Finish.ERROR`.
    """

    handle: int
    finish: Finish
    num_cached: int
    values: Float32Array
    others: Float32Array
    best_ids: Int32Array
    best: Float32Array
    log_sums: Float64Array
    hidden: Float32Array | None = None
    error: str | None = None


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """All results of one step for one frontend: E entries, T tokens in all.

    Attributes:
        handles: int64 [E], the request of each entry.
        choices: int32 [E], the choice of each entry.
        num_new: int32 [E], tokens of the entry, 0 or more; they sum to T.
        finish: uint8 [E], `Finish` codes. Each choice ends with exactly one non-zero code.
        num_cached: int32 [E], prompt tokens served from the prefix cache.
        token_ids: int32 [T], entry after entry. A stop token is included.
        logprobs: of the T tokens, where any entry asked for them; entries that did not
            hold undefined values.
        origins: uint8 [T], `Origin` codes, where any entry asked for them; entries that did not
            hold undefined values. None without a drafter too: every token was drawn.
        prompt_logprobs: of the requests whose prompt was finished by this step.
        routes: of choices that ended, where asked for.
        item_scores: of scoring requests that ended.
        errors: handle -> message for entries ended with `Finish.ERROR`, `ADAPTER`, `GRAMMAR` or
            `TOO_COMPLEX`.
        drafts: int64 [E, 2 + k], counts of the drafts of each entry's choice so far, the fields of
            `DraftStats` in order; None without a drafter.
        times: float64 [E, 3], when each entry's choice was submitted, first got a row, and drew its
            first token, on the monotonic clock in seconds; 0 before. None unless the engine is
            configured to report them.
        weight_version, weight_tag: of the weights by which the tokens were drawn; see
            `EngineState`.
        stats: the engine's gauges and counters; None where the ones before are fresh enough.
        state: what holds the engine, with each `stats`.
        control: ends of commands.
    """

    handles: Int64Array
    choices: Int32Array
    num_new: Int32Array
    finish: UInt8Array
    num_cached: Int32Array
    token_ids: Int32Array
    logprobs: LogprobArrays | None = None
    origins: UInt8Array | None = None
    prompt_logprobs: list[PromptLogprobs] = []
    routes: list[ChoiceRoutes] = []
    item_scores: list[ItemScores] = []
    errors: dict[int, str] = {}
    drafts: Int64Array | None = None
    times: Float64Array | None = None
    weight_version: str = FIRST_VERSION
    weight_tag: str = ""
    stats: EngineStats | None = None
    state: EngineState | None = None
    control: list[ControlReply] = []
