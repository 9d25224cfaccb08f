"""Bodies as specs: each field is honored, or refused by the name that its clients know it by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from engine.contracts.info import EngineInfo
from engine.messages.request import PromptLogprobsParams
from sampling.params import ParameterError, SamplingParams
from server.config import SamplingDefaults, ServerConfig
from server.errors import ClientNames, bad_request
from server.generation.form import ReplyForm
from server.generation.masks import INLINE_IDS, bad_words, check_some_token_is_left
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec, Prompts, Truncation
from server.schema.base import BodyModel
from server.schema.fields import StreamOptions
from server.schema.generation import GenerationFields, LogprobFields, RequestFields, TextFields
from server.schema.ids import check_vocab
from server.structured.spec import NO_CONSTRAINTS, Constraints
from server.text.stop import StopStrings

INLINE_BAD_WORDS, INLINE_STOP_CHARS = 16, 1024
_NO_OPTIONS = StreamOptions()
_NO_OTHERS: Mapping[str, Any] = {}
_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "top_k": lambda top_k: max(top_k, 0),  # -1 keeps all, as 0 does
    "seed": lambda seed: None if seed == -1 else seed,
    "logit_bias": lambda biases: {int(key): bias for key, bias in biases.items()},
    "allowed_token_ids": tuple,
    "logprob_token_ids": tuple,
}
"""How values of a body become values of `SamplingParams`; others are the same in both."""
_OWN = frozenset(("logprobs", "bad_words", "stop_token_ids", "constrained"))
"""Parameters that are made of more than a field of their name."""
_SAME = [name for name in SamplingParams.__struct_fields__ if name not in _OWN]
_DEFAULTS = [name for name in _SAME if name in SamplingDefaults.__struct_fields__]


@dataclass(frozen=True, kw_only=True)
class Translation:
    """What makes the spec of one body, and the parts of it that endpoints share.

    Attributes:
        served: the model that fields are read against.
        names: what the endpoint's clients call the fields of a spec.
        reply_id: of the spec.
    """

    served: ServedModel
    names: ClientNames
    reply_id: str

    async def spec(
        self,
        body: GenerationFields,
        *,
        model: str,
        prompts: Prompts,
        constraints: Constraints,
        most_tokens: int,
        is_parsed: bool = False,
        add_special_tokens: bool = True,
        cuts_prompts: bool = False,
    ) -> GenerationSpec:
        """What a completion or a chat asks for; raises `ApiError` for what cannot be served.

        Args:
            most_tokens: limit of each choice where the body has none.
            is_parsed: as for `form`.
            cuts_prompts: they are cut as the body says; else they were already.
        """
        limit, config = body.token_limit, self.served.config
        max_tokens, truncation = most_tokens if limit is None else limit, None
        if cuts_prompts:
            info = self.served.info
            truncation = wanted_truncation(body, reply_tokens=max_tokens, info=info)
        params = await self.params(body, logprobs=body.num_top, constraints=constraints)
        form = await self.full_form(body, params, stream=bool(body.stream), is_parsed=is_parsed)
        return GenerationSpec(
            names=self.names,
            reply_id=self.reply_id,
            model=model,
            prompts=prompts,
            params=params,
            form=replace(
                form,
                **self.when_usage(checked_options(body)),
                usage_cached=config.prompt_tokens_details,
                weight_versions=bool(body.return_weight_versions),
            ),
            max_tokens=max_tokens,
            fits_context=limit is None,
            constraints=constraints,
            n=body.n or 1,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            stream_interval=body.stream_interval or 1,
            add_special_tokens=add_special_tokens,
            truncation=truncation,
        )

    def when_usage(self, options: StreamOptions) -> dict[str, bool]:
        """Fields of a form: which chunks of a stream carry usage."""
        forced = self.served.config.force_include_usage
        return {
            "usage_at_end": forced or bool(options.include_usage),
            "usage_always": forced or options.usage_always,
        }

    async def params(
        self,
        body: BodyModel,
        *,
        logprobs: int | None = None,
        constraints: Constraints = NO_CONSTRAINTS,
        others: Mapping[str, Any] = _NO_OTHERS,
    ) -> SamplingParams:
        """How the tokens of each choice are drawn; raises `ApiError` for what cannot be served.

        A field of the body that has the name of a parameter sets it. Large ones are converted in a
        thread.

        Args:
            logprobs: top tokens that the body asks for.
            constraints: restrict the tokens from the first one on.
            others: values, as a field would have them, of parameters that the body has no field of.
        """
        grammar, ignores_end = constraints.grammar, getattr(body, "ignore_eos", None)
        if grammar is not None and ignores_end:
            reason = "a finished grammar allows an end of text only"
            raise self.names.refuse("ignore_eos", f"must be false with {grammar.param}: {reason}")
        given = given_params(body, self.served.info.eos_token_ids, others)
        given["logprobs"] = self.num_top("logprobs", logprobs)
        given["constrained"] = grammar is not None or constraints.budget is not None
        words: list[str] = getattr(body, "bad_words", None) or []
        num_ids = sum(len(given.get(name, ())) for name in ("logit_bias", "allowed_token_ids"))
        if len(words) > INLINE_BAD_WORDS or num_ids > INLINE_IDS:
            return await asyncio.to_thread(self._converted, given, words)
        return self._converted(given, words)

    def _converted(self, given: Mapping[str, Any], words: list[str]) -> SamplingParams:
        """Parameters of a body's values, all of whose ids the model has."""
        info, banned = self.served.info, bad_words(words, self.served.tokenizer)
        params = converted_params(given, banned, self.served.config)
        try:
            params.check_vocab(info.vocab_size)
        except ParameterError as error:
            raise bad_request(error.param, str(error)) from None
        check_some_token_is_left(params, info)
        return params

    def num_top(self, field: str, value: int | None) -> int | None:
        """The number of top tokens to report; -1 is the whole vocabulary. Raises `ApiError`."""
        is_prompt, vocab_size = field.startswith("prompt"), self.served.info.vocab_size
        most = self.served.config.max_logprobs if is_prompt else self.served.max_drawn_top
        if value is None:
            return None
        limit = vocab_size if most == -1 else most
        if value == -1 and limit >= vocab_size:
            return vocab_size
        if not 0 <= value <= limit:
            words = f"must be between 0 and {limit} (--max-logprobs), got {value}"
            raise self.names.refuse(field, words)
        return value

    async def form(
        self,
        params: SamplingParams,
        *,
        stream: bool,
        is_parsed: bool,
        stops: Sequence[str] | None = None,
    ) -> ReplyForm:
        """The form of a reply that carries text, and the logprobs that its parameters ask for.

        Args:
            is_parsed: the reply is taken apart, so that special tokens may be markers.
        """
        return ReplyForm(
            mode=params.logprobs_mode,
            silent_ends=frozenset(self.served.info.eos_token_ids),
            stream=stream,
            stops=await _stop_strings(stops),
            min_tokens=params.min_tokens,
            num_top=params.logprobs,
            explicit_ids=params.logprob_token_ids,
            kept=params.kept_logprob,
            tokens_as_ids=self.served.config.tokens_as_token_ids,
            skip_special_tokens=not is_parsed,
            token_starts=is_parsed,
            usage_cached=True,
        )

    async def full_form(
        self, body: TextFields, params: SamplingParams, *, stream: bool, is_parsed: bool = False
    ) -> ReplyForm:
        """The form of a reply by the fields of a body that choose what it shows; raises `ApiError`.

        Args:
            params: made of the same body.
            is_parsed: as for `form`.
        """
        as_ids, is_packed = body.return_tokens_as_token_ids, body.logprobs_format == "packed"
        if body.logprobs_dtype is not None and not is_packed:
            words = f'needs logprobs_format "packed", got {body.logprobs_dtype} alone'
            raise bad_request("logprobs_dtype", f"logprobs_dtype {words}")
        form = await self.form(params, stream=stream, is_parsed=is_parsed, stops=body.stop)
        num_prompt_top = self.num_top("prompt_logprobs", body.prompt_logprobs)
        return replace(
            form,
            silent_ends=frozenset() if body.ignore_eos else form.silent_ends,
            echo=body.echoes_prompt,
            include_stop=bool(body.include_stop_str_in_output),
            num_prompt_top=num_prompt_top,
            prompt_explicit_ids=body.prompt_logprob_token_ids,
            prompt_logprobs=self._prompt_logprobs(body, params, num_prompt_top),
            tokens_as_ids=form.tokens_as_ids if as_ids is None else as_ids,
            return_token_ids=bool(body.return_token_ids),
            skip_special_tokens=not is_parsed and body.skip_special_tokens is not False,
            spaces_between=body.spaces_between_special_tokens is not False,
            next_token_only=body.token_limit == 0,
            packed=is_packed,
            packed_dtype=body.logprobs_dtype or "float32",
            origins=bool(body.return_token_origin),
        )

    def _prompt_logprobs(
        self, body: LogprobFields, params: SamplingParams, num_prompt_top: int | None
    ) -> PromptLogprobsParams | None:
        """Which logprobs of the prompt are asked for; None for none. Raises `ApiError`.

        Args:
            num_prompt_top: top tokens in `prompt_logprobs`; those of an echoed prompt are as many
                as of the generated tokens.
        """
        echoed = params.logprobs if body.echoes_prompt else None
        ids, start = body.prompt_logprob_token_ids, body.prompt_logprob_start
        if ids is not None:
            check_vocab("prompt_logprob_token_ids", ids.reshape(-1), self.served.info.vocab_size)
        elif num_prompt_top is None and echoed is None:
            if start is not None:
                raise bad_request(
                    "prompt_logprob_start",
                    "prompt_logprob_start needs prompt_logprobs, prompt_logprob_token_ids, or echo "
                    f"with logprobs; got {start} alone",
                )
            return None
        return PromptLogprobsParams(
            start=max(start or 1, 1),
            num_top=max(num_prompt_top or 0, echoed or 0),
            token_ids=tuple(ids.tolist()) if ids is not None and ids.ndim == 1 else (),
            id_lists=ids if ids is not None and ids.ndim == 2 else None,
            mode=params.logprobs_mode,
            by_part=body.sends_prompt_parts,
        )


def given_params(
    body: BodyModel, eos_token_ids: tuple[int, ...], others: Mapping[str, Any] = _NO_OTHERS
) -> dict[str, Any]:
    """The parameters that a body names, as it has them, and the ids that end its texts.

    Args:
        eos_token_ids: the model's.
        others: values, as a field would have them, of parameters that the body has no field of.
    """
    given = {
        name: value
        for name in _SAME
        if (value := others.get(name, getattr(body, name, None))) is not None
    }
    ends = () if getattr(body, "ignore_eos", None) else eos_token_ids
    stops = getattr(body, "stop_token_ids", None) or ()
    return {**given, "stop_token_ids": tuple(dict.fromkeys((*ends, *stops)))}


def converted_params(
    given: Mapping[str, Any], bad_words: tuple[tuple[int, ...], ...], config: ServerConfig
) -> SamplingParams:
    """Parameters of `given_params`, with the server's defaults for those not given.

    Raises:
        ApiError: a value is out of bounds.
    """
    defaults = {name: getattr(config.defaults, name) for name in _DEFAULTS}
    converted = {
        name: _CONVERTED[name](value) if name in _CONVERTED else value
        for name, value in given.items()
    }
    own = {"logprobs_mode": config.logprobs_mode, **defaults, **converted}
    try:
        return SamplingParams(**own, bad_words=bad_words)
    except ParameterError as error:
        raise bad_request(error.param, str(error)) from None


def checked_options(body: RequestFields) -> StreamOptions:
    """A body's options of its stream, or the defaults; a 400 for options without a stream."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options", "stream_options needs stream to be true")
    return body.stream_options or _NO_OPTIONS


async def _stop_strings(texts: Sequence[str] | None) -> StopStrings | None:
    """The automaton of stop strings, made in a thread where they are long; None for none."""
    if not texts:
        return None
    if sum(map(len, texts)) <= INLINE_STOP_CHARS:
        return StopStrings(texts)
    return await asyncio.to_thread(StopStrings, texts)


def wanted_truncation(
    body: GenerationFields, *, reply_tokens: int, info: EngineInfo
) -> Truncation | None:
    """How a body lets its prompts be cut; None where they are not. Raises `ApiError`.

    Args:
        reply_tokens: limit of the reply, for which a field of -1 leaves room.
    """
    keep = body.truncate_prompt_tokens
    if keep is None:
        return None
    if keep == 0 or keep > info.max_model_len:
        words = f"must be -1 or in [1, {info.max_model_len}], got {keep}"
        raise bad_request("truncate_prompt_tokens", f"truncate_prompt_tokens {words}")
    if keep == -1:
        keep = max(info.max_model_len - reply_tokens, 1)
    return Truncation(keep, body.truncation_side or "left")
