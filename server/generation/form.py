"""The form of a reply: what a request wants reported."""

from __future__ import annotations

import asyncio

import msgspec

from engine.arrays import Int32Array
from engine.request import PromptLogprobsParams, RoutesParams
from sampling.params import SamplingParams
from server.errors import bad_request
from server.generation.params import num_top, packed_dtype, prompt_logprobs_params
from server.generation.served import ServedModel
from server.schema.fields import PackedDtype, StreamOptions
from server.schema.generation import GenerationFields
from server.text.stop import StopStrings

INLINE_STOP_CHARS = 1024
_NO_OPTIONS = StreamOptions()


class ReplyForm(msgspec.Struct, frozen=True):
    """What a reply carries.

    Attributes:
        stops: stop strings; None where there are none.
        mode: which values are logprobs.
        num_top: top tokens in generated tokens' logprobs; None for no `logprobs` object.
        explicit_ids: ids reported at each generated position, beside `logprobs`.
        kept: the mass that was kept is reported at each generated position.
        num_prompt_top: top tokens in `prompt_logprobs`; None for none.
        prompt_explicit_ids: ids reported at each prompt position, int32 [J] or [positions, J].
        prompt_logprobs: what the engine reports of the prompt, for `echo` too.
        next_token_only: nothing is generated; the next token's logprobs come from a token that is
            drawn and dropped.
        silent_ends: ids that end a choice with a null `stop_reason`.
        packed: values go as arrays in base64.
        packed_dtype: what these values are rounded to.
        origins: where each generated token came from is reported.
        token_starts: where each token begins is needed whatever else is asked for.
        usage_at_end: a stream ends with a chunk of usage.
        usage_always: every chunk of a stream carries usage.
        usage_cached: usage counts cached prompt tokens.
        weight_versions: the weights that drew each token are reported.
        routes: the experts that tokens took are reported when a choice ends; None: they are not.
    """

    mode: str
    silent_ends: frozenset[int]
    stream: bool = False
    echo: bool = False
    stops: StopStrings | None = None
    include_stop: bool = False
    min_tokens: int = 0
    num_top: int | None = None
    explicit_ids: tuple[int, ...] | None = None
    kept: bool = False
    num_prompt_top: int | None = None
    prompt_explicit_ids: Int32Array | None = None
    prompt_logprobs: PromptLogprobsParams | None = None
    tokens_as_ids: bool = False
    return_token_ids: bool = False
    skip_special_tokens: bool = True
    spaces_between: bool = True
    next_token_only: bool = False
    packed: bool = False
    packed_dtype: PackedDtype = "float32"
    origins: bool = False
    token_starts: bool = False
    usage_at_end: bool = False
    usage_always: bool = False
    usage_cached: bool = False
    weight_versions: bool = False
    routes: RoutesParams | None = None

    @property
    def eager(self) -> bool:
        """Whether text is wanted as tokens come, not only at the end."""
        return self.stream or self.stops is not None

    @property
    def per_token(self) -> bool:
        """Whether it matters where in the text each token begins."""
        return self.num_top is not None or self.stops is not None or self.token_starts

    @property
    def shows_logprobs(self) -> bool:
        """Whether values of generated positions are reported."""
        return self.num_top is not None or self.explicit_ids is not None or self.kept

    @property
    def shows_tokens(self) -> bool:
        """Whether a chunk without text has something to report."""
        return self.shows_logprobs or self.return_token_ids or self.origins

    @property
    def by_part(self) -> bool:
        """Whether chunks carry what is reported of the prompt as it is computed."""
        return self.prompt_logprobs is not None and self.prompt_logprobs.by_part

    @property
    def shows_prompt(self) -> bool:
        """Whether a choice's first piece carries something of the prompt."""
        return self.echo or self.prompt_logprobs is not None or self.return_token_ids


def reply_form(
    params: SamplingParams,
    served: ServedModel,
    *,
    stream: bool,
    is_parsed: bool,
    stops: StopStrings | None = None,
) -> ReplyForm:
    """The form of a reply that carries text, and the logprobs that its parameters ask for.

    Args:
        is_parsed: the reply is taken apart, so that special tokens may be markers.
    """
    return ReplyForm(
        mode=params.logprobs_mode,
        silent_ends=frozenset(served.info.eos_token_ids),
        stream=stream,
        stops=stops,
        min_tokens=params.min_tokens,
        num_top=params.logprobs,
        explicit_ids=params.logprob_token_ids,
        kept=params.kept_logprob,
        tokens_as_ids=served.config.tokens_as_token_ids,
        skip_special_tokens=not is_parsed,
        token_starts=is_parsed,
        usage_cached=True,
    )


async def full_reply_form(
    body: GenerationFields, params: SamplingParams, served: ServedModel, *, is_parsed: bool = False
) -> ReplyForm:
    """The form of a reply by the fields that completions and chats share; raises `ApiError`.

    Args:
        params: made of the same body.
        is_parsed: as for `reply_form`.
    """
    config = served.config
    options = checked_options(body.stream_options, stream=bool(body.stream))
    as_ids = body.return_tokens_as_token_ids
    num_prompt_top = num_top("prompt_logprobs", body.prompt_logprobs, served, body.client_names)
    return ReplyForm(
        mode=params.logprobs_mode,
        silent_ends=frozenset(() if body.ignore_eos else served.info.eos_token_ids),
        stream=bool(body.stream),
        echo=body.echoes_prompt,
        stops=await stop_strings(body.stop),
        include_stop=bool(body.include_stop_str_in_output),
        min_tokens=params.min_tokens,
        num_top=params.logprobs,
        explicit_ids=params.logprob_token_ids,
        kept=params.kept_logprob,
        num_prompt_top=num_prompt_top,
        prompt_explicit_ids=body.prompt_logprob_token_ids,
        prompt_logprobs=prompt_logprobs_params(body, params, num_prompt_top, served),
        tokens_as_ids=config.tokens_as_token_ids if as_ids is None else as_ids,
        return_token_ids=bool(body.return_token_ids),
        skip_special_tokens=not is_parsed and body.skip_special_tokens is not False,
        spaces_between=body.spaces_between_special_tokens is not False,
        next_token_only=body.token_limit == 0,
        packed=body.logprobs_format == "packed",
        packed_dtype=packed_dtype(body.logprobs_format, body.logprobs_dtype),
        origins=bool(body.return_token_origin),
        token_starts=is_parsed,
        usage_at_end=config.force_include_usage or bool(options.include_usage),
        usage_always=config.force_include_usage or options.usage_always,
        usage_cached=config.prompt_tokens_details,
        weight_versions=bool(body.return_weight_versions),
    )


def checked_options(options: StreamOptions | None, *, stream: bool) -> StreamOptions:
    """A body's options of its stream, or the defaults; a 400 for options without a stream."""
    if options is not None and not stream:
        raise bad_request("stream_options", "stream_options needs stream to be true")
    return options or _NO_OPTIONS


async def stop_strings(texts: list[str] | None) -> StopStrings | None:
    """The automaton of stop strings, made in a thread where they are long; None for none."""
    if not texts:
        return None
    if sum(map(len, texts)) <= INLINE_STOP_CHARS:
        return StopStrings(texts)
    return await asyncio.to_thread(StopStrings, texts)
