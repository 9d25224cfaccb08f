"""The form of a reply: what a completion request wants to be told."""

from __future__ import annotations

import msgspec

from engine.config import EngineInfo
from engine.request import PromptLogprobsParams
from sampling.params import SamplingParams
from server.config import ServerConfig
from server.endpoints.completions.schema import CompletionRequest
from server.generation.params import num_top, prompt_logprobs_params
from server.text.stop import StopStrings


class ReplyForm(msgspec.Struct, frozen=True):
    """What a reply carries.

    Attributes:
        stops: stop strings; None where there are none.
        num_top: top tokens in generated tokens' logprobs; None for no `logprobs` object.
        explicit_ids: ids reported at each generated position, beside `logprobs`.
        kept: the mass that was kept is reported at each generated position.
        num_prompt_top: top tokens in `prompt_logprobs`; None for none.
        prompt_explicit_ids: ids reported at each prompt position.
        prompt_logprobs: what the engine reports of the prompt, for `echo` too.
        next_token_only: nothing is generated; the next token's logprobs come from a token that is
            drawn and dropped.
        silent_ends: ids that end a choice with a null `stop_reason`.
        packed: values go as arrays in base64.
        origins: where each generated token came from is reported.
        token_starts: where each token begins is needed whatever else is asked for.
    """

    stream: bool
    echo: bool
    stops: StopStrings | None
    include_stop: bool
    min_tokens: int
    num_top: int | None
    explicit_ids: tuple[int, ...] | None
    kept: bool
    num_prompt_top: int | None
    prompt_explicit_ids: tuple[int, ...] | None
    prompt_logprobs: PromptLogprobsParams | None
    mode: str
    tokens_as_ids: bool
    return_token_ids: bool
    skip_special_tokens: bool
    spaces_between: bool
    next_token_only: bool
    silent_ends: frozenset[int]
    packed: bool
    origins: bool
    token_starts: bool = False

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
        """Whether a chunk without text has something to tell."""
        return self.shows_logprobs or self.return_token_ids or self.origins

    @property
    def shows_prompt(self) -> bool:
        """Whether a choice's first piece carries something of the prompt."""
        return self.echo or self.prompt_logprobs is not None or self.return_token_ids


def reply_form(
    body: CompletionRequest,
    params: SamplingParams,
    stops: StopStrings | None,
    config: ServerConfig,
    info: EngineInfo,
    *,
    token_starts: bool = False,
) -> ReplyForm:
    """Read the form of the reply off a body; raises `ApiError`.

    Args:
        params: made of the same body. stops: the automaton of its stop strings.
        token_starts: see `ReplyForm`.
    """
    as_ids = body.return_tokens_as_token_ids
    return ReplyForm(
        stream=bool(body.stream),
        echo=bool(body.echo),
        stops=stops,
        include_stop=bool(body.include_stop_str_in_output),
        min_tokens=params.min_tokens,
        num_top=params.logprobs,
        explicit_ids=params.logprob_token_ids,
        kept=params.kept_logprob,
        num_prompt_top=num_top("prompt_logprobs", body.prompt_logprobs, config, info),
        prompt_explicit_ids=tuple(body.prompt_logprob_token_ids or ()) or None,
        prompt_logprobs=prompt_logprobs_params(body, params, config, info),
        mode=params.logprobs_mode,
        tokens_as_ids=config.tokens_as_token_ids if as_ids is None else as_ids,
        return_token_ids=bool(body.return_token_ids),
        skip_special_tokens=body.skip_special_tokens is not False,
        spaces_between=body.spaces_between_special_tokens is not False,
        next_token_only=body.max_tokens == 0,
        packed=body.logprobs_format == "packed",
        origins=bool(body.return_token_origin),
        silent_ends=frozenset() if body.ignore_eos else frozenset(info.eos_token_ids),
        token_starts=token_starts,
    )
