"""What crosses between a frontend and the engine: requests in, one `StepOutput` a step out.

Both directions are one message type each; `engine.codec` makes bytes of them.
"""

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
from engine.contracts.control import FIRST_VERSION, ControlReply, ControlRequest, EngineState
from engine.stats import EngineStats
from sampling.params import LogprobsMode, SamplingParams


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


MAX_STEP_VALUES = 1 << 24
"""Values of one prompt that a step reports, at most: 128 MiB with their ids."""


class PromptLogprobsParams(msgspec.Struct, frozen=True, kw_only=True):
    """Which logprobs of the prompt's own tokens are reported.

    Attributes:
        start: first prompt position reported, at least 1 (position 0 follows nothing).
        num_top: number of top tokens per position.
        token_ids: explicit ids per position, duplicates kept.
        id_lists: int32 [prompt_len - start, J], explicit ids of each position in place of these;
            -1 pads, and is answered -inf.
        mode: which values are reported.
        by_part: parts are reported as steps compute them; otherwise all of them at once.
    """

    start: int = 1
    num_top: int = 0
    token_ids: tuple[int, ...] = ()
    id_lists: Int32Array | None = None
    mode: LogprobsMode = "raw_logprobs"
    by_part: bool = False

    @property
    def num_explicit(self) -> int:
        """Explicit ids per position."""
        return len(self.token_ids) if self.id_lists is None else self.id_lists.shape[1]

    @property
    def step_tokens(self) -> int:
        """The most prompt tokens of a step, whose values are kept on the device until its end."""
        return max(MAX_STEP_VALUES // (1 + self.num_top + self.num_explicit), 1)


class RoutesParams(msgspec.Struct, frozen=True, kw_only=True):
    """Which experts' routes are reported, when a choice ends.

    Attributes:
        start: the first token, of prompt and choice together.
        has_weights: weights are reported beside ids.
    """

    start: int = 0
    has_weights: bool = False


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """The grammar of a request's generated tokens.

    Attributes:
        source: llguidance's serialised grammar, as `LLMatcher.grammar_from_json_schema` and its
            siblings return it.
        after: token ids after whose first occurrence among the generated tokens the grammar
            begins, such as the end of a model's reasoning; empty: with the first of them.
        unless_opened: token ids that the generated tokens must begin with for `after` to be waited
            for; where they do not, the grammar begins with the first of them. Empty: `after` is
            waited for in any case.
    """

    source: str
    after: tuple[int, ...] = ()
    unless_opened: tuple[int, ...] = ()


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A bound of the tokens that a choice thinks before it answers.

    Attributes:
        num_tokens: once so many were drawn between the markers, in all, only `end` can be drawn.
        begin: token ids that open thoughts, wherever they are drawn; not empty.
        end: token ids that close them; not empty.
        are_open: thoughts are open before the first token.
    """

    num_tokens: int
    begin: tuple[int, ...]
    end: tuple[int, ...]
    are_open: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt with `n` choices.

    Attributes:
        handle: the frontend's number for it; unique among the frontend's unfinished requests.
        prompt_token_ids: int32 [prompt_len], not empty.
        params: how tokens are drawn; the same for every choice.
        n: number of choices; each becomes a row.
        num_before: choices of the body's earlier prompts, where a client sent several in one body.
        max_tokens: tokens generated at most, at least 1.
        priority: lower runs earlier; equal ones in order of arrival.
        emit_interval: report to the frontend every so many tokens (and at the end); 1 streams.
        prompt_logprobs: which logprobs of the prompt's own tokens are reported, once, by choice 0.
        report_origins: the output reports each token's `Origin`.
        cache_salt: enters the prefix hashes, so that only equal salts share blocks.
        name: by which the request can be aborted from any frontend; need not be unique.
        adapter: name of the adapter that it is drawn with; empty for the base model.
        grammar: restricts each choice's tokens.
        thinking_budget: bounds each choice's thoughts.
        routes: each choice reports which experts its tokens took.
    """

    handle: int
    prompt_token_ids: Int32Array
    params: SamplingParams
    n: int = 1
    num_before: int = 0
    max_tokens: int
    priority: int = 0
    emit_interval: int = 1
    prompt_logprobs: PromptLogprobsParams | None = None
    report_origins: bool = False
    cache_salt: str = ""
    name: str = ""
    adapter: str = ""
    grammar: Grammar | None = None
    thinking_budget: ThinkingBudget | None = None
    routes: RoutesParams | None = None

    @property
    def is_constrained(self) -> bool:
        """Whether its choices draw under masks of their own, as `params.constrained` says too."""
        return self.grammar is not None or self.thinking_budget is not None


class Branches(msgspec.Struct, frozen=True, kw_only=True):
    """Continuations of a scoring request's items, B in all, item after item.

    Attributes:
        counts: int32 [N], branches of each item, at least 1; they sum to B.
        lens: int32 [B], tokens of each branch, 0 or more.
        token_ids: int32 [lens.sum()], branch after branch.
    """

    counts: Int32Array
    lens: Int32Array
    token_ids: Int32Array


class ScoringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A query with items after it, some positions of which are read. Nothing is generated.

    An item's keys are computed once, however many branches continue it. Each branch sees the query,
    its item and itself.

    Attributes:
        handle: as `Request.handle`; both kinds of request share the numbers.
        query_token_ids: int32 [Q]; may be empty.
        item_token_ids: int32 [item_lens.sum()], item after item.
        item_lens: int32 [N], each at least 1.
        branches: what continues the items; None where each has one branch without tokens.
        num_read: int32 [B], how many of the last positions of an item and its branch are read; the
            sum is at least 1. Of several branches of an item, each reads at most the item's last
            position and its own.
        id_lists: int32 [M, J], ids whose logprobs are read, padded with -1. The lists are used in
            turn: the request's p-th read position, branches in order, reads list p % M.
        embeds: hidden states are read instead of logprobs; `id_lists` is then [1, 0].
        priority: as `Request.priority`.
        cache_salt: as `Request.cache_salt`.
        adapter: as `Request.adapter`.
    """

    handle: int
    query_token_ids: Int32Array
    item_token_ids: Int32Array
    item_lens: Int32Array
    num_read: Int32Array
    id_lists: Int32Array
    branches: Branches | None = None
    embeds: bool = False
    priority: int = 0
    cache_salt: str = ""
    adapter: str = ""


class FrontendMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The only message a frontend sends.

    Attributes:
        submit: new requests, in order.
        score: new scoring requests, in order.
        abort: (handle, choice) pairs; choice -1 means all of the request's.
        control: commands, in order.
    """

    submit: list[Request] = []
    score: list[ScoringRequest] = []
    abort: list[tuple[int, int]] = []
    control: list[ControlRequest] = []


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
        weight_version: of the weights by which the tokens were drawn.
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
    stats: EngineStats | None = None
    state: EngineState | None = None
    control: list[ControlReply] = []
