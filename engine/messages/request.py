"""What a frontend asks of the engine: requests, aborts and commands in one message. No torch."""

from __future__ import annotations

import msgspec

from engine.arrays import Int32Array
from engine.contracts.control import ControlRequest
from sampling.params import LogprobsMode, SamplingParams

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
        adapter_digest: the adapter's, as of `NamedAdapter`: where the name stands for another, the
            request ends; empty for whatever it stands for.
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
    adapter_digest: str = ""
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
        adapter, adapter_digest: as `Request` has them.
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
    adapter_digest: str = ""


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
