"""The form of a reply: what a request wants reported."""

from __future__ import annotations

import msgspec

from engine.arrays import Int32Array
from engine.messages.request import PromptLogprobsParams, RoutesParams
from server.schema.fields import PackedDtype
from server.text.stop import StopStrings


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
        first_unvalued: the token before those of the prompt that have values is shown, without one.
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
    first_unvalued: bool = False
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
