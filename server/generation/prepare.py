"""Makes a spec ready: prompts as ids, grammars compiled, limits checked."""

from __future__ import annotations

import asyncio
import time

import msgspec

from engine.request import Grammar
from server.errors import bad_request
from server.generation.masks import check_masks
from server.generation.params import INLINE_IDS
from server.generation.prompts import Prompt, prepare_prompts
from server.generation.served import ServedModel
from server.generation.size_limits import check_num_allowed_ids, check_num_choices, check_reply_size
from server.generation.spec import GenerationSpec
from server.schema.model_name import adapter_of
from server.schema.priority import check_priority
from server.structured.spec import CheckedGrammar

NON_STREAM_INTERVAL, STOP_STRING_INTERVAL = 32, 4


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request as far as it is known before the engine is asked.

    Attributes:
        grammar: restricts each choice's tokens; None for none.
        ignored_keywords: where keywords of JSON schemas were dropped.
        emit_interval: tokens between two reports of the engine.
        adapter: as of `Request.adapter`.
    """

    spec: GenerationSpec
    served: ServedModel
    created: int
    fingerprint: str
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
    if spec.n > config.max_choices:
        words = f"must be at most {config.max_choices} (--max-n-sequences), got {spec.n}"
        raise spec.names.refuse("n", words)
    check_num_choices(len(spec.prompts), spec.n, config)
    check_num_allowed_ids(len(spec.prompts), len(spec.params.allowed_token_ids or ()))
    check_priority(spec.priority, config)
    checked = await _checked_grammar(spec, served)
    prompts = await prepare_prompts(spec, served)
    for prompt in prompts:
        _check_prompt(spec, prompt)
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


async def _checked_grammar(spec: GenerationSpec, served: ServedModel) -> CheckedGrammar | None:
    """The grammar as llguidance takes it; it and the budget of thoughts fit all other masks."""
    constraints, checked = spec.constraints, None
    if constraints.grammar is not None:
        checked = await served.grammars.check(constraints.grammar)
        if constraints.after:  # the first token need not be one of the grammar's
            checked = msgspec.structs.replace(checked, first=b"\xff" * len(checked.first))
    masks = spec.params, checked, constraints.budget, served.info
    if checked is not None and len(spec.params.allowed_token_ids or ()) > INLINE_IDS:
        await asyncio.to_thread(check_masks, *masks)
    else:
        check_masks(*masks)
    return checked


def _check_prompt(spec: GenerationSpec, prompt: Prompt) -> None:
    """Raise a 400 where what is asked of a prompt does not fit its length."""
    names, wanted, prompt_len = spec.names, spec.form.prompt_logprobs, len(prompt.token_ids)
    if spec.form.min_tokens > prompt.max_tokens:
        words = f"must be at most {names['max_tokens']} ({prompt.max_tokens}), "
        raise names.refuse("min_tokens", f"{words}got {spec.form.min_tokens}")
    routes = spec.form.routes
    if routes is not None and routes.start > prompt_len:
        words = f"must be at most the prompt's {prompt_len} tokens, got {routes.start}"
        raise names.refuse("routes_start", words)
    if wanted is None:
        return
    if wanted.id_lists is not None:
        given, count = len(wanted.id_lists), prompt_len - wanted.start
        words = ""
        if len(spec.prompts) != 1:
            words = (
                f"may hold a list for each position of one prompt, got {len(spec.prompts)} prompts"
            )
        elif given != count:
            words = f"must hold {count} lists, one for each of the prompt's {prompt_len} tokens "
            words += f"from prompt_logprob_start {wanted.start} on, got {given}"
        if words:
            param = "prompt_logprob_token_ids"
            raise bad_request(param, f"{param} {words}")
    # A prompt of one token has no logprobs to show: 1, the default, is right for it too.
    if wanted.start > 1 and wanted.start >= prompt_len:
        raise bad_request(
            "prompt_logprob_start",
            f"prompt_logprob_start must be below the prompt's {prompt_len} tokens, "
            f"got {wanted.start}",
        )
