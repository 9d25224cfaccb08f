"""Makes a spec ready: prompts as ids, grammars compiled, limits checked."""

from __future__ import annotations

import time

import msgspec

from engine.messages.request import Grammar
from server.generation.masks import checked_grammar
from server.generation.prompts import Prompt, prepare_prompts
from server.generation.served import ReplyFingerprint, ServedModel
from server.generation.size_limits import check_counts, check_reply_size
from server.generation.spec import GenerationSpec
from server.schema.model_name import adapter_of

NON_STREAM_INTERVAL, STOP_STRING_INTERVAL = 32, 4


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request as far as it is known before the engine is asked.

    Attributes:
        grammar: restricts each choice's tokens; None for none.
        fingerprint: of the reply, as far as it has come.
        ignored_keywords: where keywords of JSON schemas were dropped.
        emit_interval: tokens between two reports of the engine.
        adapter: as of `Request.adapter`.
    """

    spec: GenerationSpec
    served: ServedModel
    created: int
    fingerprint: ReplyFingerprint
    prompts: list[Prompt]
    grammar: Grammar | None
    ignored_keywords: list[str]
    emit_interval: int
    adapter: str = ""

    @property
    def num_choices(self) -> int:
        """Choices of all prompts together."""
        return len(self.prompts) * self.spec.n


async def prepare(spec: GenerationSpec, served: ServedModel) -> PreparedRequest:
    """Check a spec and make it ready; raises `ApiError` for what cannot be served."""
    config, constraints = served.config, spec.constraints
    check_counts(spec, config)
    checked = await checked_grammar(spec, served)
    prompts = await prepare_prompts(spec, served)
    check_reply_size(spec, prompts, config)
    grammar, ignored = None, constraints.ignored
    if checked is not None:
        after, unless_opened = constraints.after, constraints.unless_opened
        grammar = Grammar(source=checked.source, after=after, unless_opened=unless_opened)
        ignored = ignored + checked.ignored
    interval = NON_STREAM_INTERVAL if spec.form.stops is None else STOP_STRING_INTERVAL
    if spec.form.stream:
        interval = max(spec.stream_interval, config.stream_interval)
    return PreparedRequest(
        spec=spec,
        served=served,
        created=int(time.time()),
        fingerprint=served.fingerprint_of(spec.model),
        prompts=prompts,
        grammar=grammar,
        ignored_keywords=ignored,
        emit_interval=interval,
        adapter=adapter_of(spec.model, config),
    )
