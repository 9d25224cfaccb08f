"""Makes a spec ready: prompts as ids, grammars compiled, limits checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sized

import msgspec

from engine.request import Grammar, PromptLogprobsParams
from server.config import ServerConfig
from server.errors import bad_request
from server.generation.bounds import check_num_allowed_ids, check_num_choices, check_reply_size
from server.generation.params import INLINE_IDS, check_budget, check_grammar
from server.generation.prompts import Prompt, prepare_prompts
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec
from server.schema.checks import adapter_of, check_priority
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
    _check_counts(spec, config)
    checked = await _checked_grammar(spec, served)
    prompts = await prepare_prompts(spec, served)
    _check_prompts(spec, prompts)
    check_reply_size(spec, prompts, config)
    grammar, ignored = None, constraints.ignored
    if checked is not None:
        after, unless_opened = constraints.after, constraints.unless_opened
        grammar = Grammar(source=checked.source, after=after, unless_opened=unless_opened)
        ignored = ignored + checked.ignored
    return PreparedRequest(
        spec=spec,
        served=served,
        created=int(time.time()),
        fingerprint=served.fingerprint_of(spec.model),
        prompts=prompts,
        grammar=grammar,
        ignored_keywords=ignored,
        emit_interval=_emit_interval(spec, config),
        adapter=adapter_of(spec.model, config),
    )


def _check_counts(spec: GenerationSpec, config: ServerConfig) -> None:
    if spec.n > config.max_choices:
        words = f"must be at most {config.max_choices} (--max-n-sequences), got {spec.n}"
        raise spec.names.refuse("n", words)
    check_num_choices(len(spec.prompts), spec.n, config)
    check_num_allowed_ids(len(spec.prompts), len(spec.params.allowed_token_ids or ()))
    check_priority(spec.priority, config)


async def _checked_grammar(spec: GenerationSpec, served: ServedModel) -> CheckedGrammar | None:
    """The grammar as llguidance takes it, checked against all other masks."""
    constraints, info = spec.constraints, served.info
    if constraints.budget is not None:
        check_budget(spec.params, constraints.budget)
    if constraints.grammar is None:
        return None
    checked = await served.grammars.check(constraints.grammar)
    if constraints.after:  # the first token need not be one of the grammar's
        checked = msgspec.structs.replace(checked, first=b"\xff" * len(checked.first))
    if len(spec.params.allowed_token_ids or ()) > INLINE_IDS:
        await asyncio.to_thread(check_grammar, spec.params, checked, info)
    else:
        check_grammar(spec.params, checked, info)
    return checked


def _check_prompts(spec: GenerationSpec, prompts: list[Prompt]) -> None:
    names, wanted = spec.names, spec.form.prompt_logprobs
    start = 1 if wanted is None else wanted.start
    for prompt in prompts:
        if spec.form.min_tokens > prompt.max_tokens:
            words = f"must be at most {names['max_tokens']} ({prompt.max_tokens}), "
            raise names.refuse("min_tokens", f"{words}got {spec.form.min_tokens}")
        routes = spec.form.routes
        if routes is not None and routes.start > (prompt_len := len(prompt.token_ids)):
            words = f"must be at most the prompt's {prompt_len} tokens, got {routes.start}"
            raise names.refuse("routes_start", words)
        # A prompt of one token has no logprobs to show: 1, the default, is right for it too.
        if wanted is not None and wanted.id_lists is not None:
            _check_id_lists(wanted, spec.prompts, prompt)
        if start > 1 and start >= (prompt_len := len(prompt.token_ids)):
            raise bad_request(
                "prompt_logprob_start",
                f"prompt_logprob_start must be below the prompt's {prompt_len} tokens, got {start}",
            )


def _check_id_lists(wanted: PromptLogprobsParams, prompts: Sized, prompt: Prompt) -> None:
    """Refuse lists of ids for positions where there are more or fewer of these."""
    assert wanted.id_lists is not None
    given, count = len(wanted.id_lists), len(prompt.token_ids) - wanted.start
    if len(prompts) != 1:
        raise bad_request(
            "prompt_logprob_token_ids",
            "prompt_logprob_token_ids may hold a list for each position of one prompt, "
            f"got {len(prompts)} prompts",
        )
    if given != count:
        raise bad_request(
            "prompt_logprob_token_ids",
            f"prompt_logprob_token_ids must hold {count} lists, one for each of the prompt's "
            f"{len(prompt.token_ids)} tokens from prompt_logprob_start {wanted.start} on, "
            f"got {given}",
        )


def _emit_interval(spec: GenerationSpec, config: ServerConfig) -> int:
    if spec.form.stream:
        return max(spec.stream_interval, config.stream_interval)
    return NON_STREAM_INTERVAL if spec.form.stops is None else STOP_STRING_INTERVAL
