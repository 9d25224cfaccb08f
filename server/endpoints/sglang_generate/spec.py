"""A body of SGLang's `/generate` as a `GenerationSpec`."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.messages.request import PromptLogprobsParams, RoutesParams
from sampling.params import SamplingParams
from server.endpoints.sglang_generate.schema import GenerateParams, GenerateRequest
from server.errors import ClientNames, bad_request
from server.generation.form import ReplyForm
from server.generation.routes import routes_params
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec, Prompts
from server.generation.support import with_support
from server.generation.translation import Translation
from server.schema.base import validate
from server.schema.structured import StructuredOutputs
from server.structured.spec import Constraints, GrammarSpec
from server.structured.wanted import wanted_grammar

DEFAULT_MAX_NEW_TOKENS = 128

NAMES = ClientNames(
    {name: f"sampling_params.{name}" for name in GenerateParams.model_fields},
    max_tokens="sampling_params.max_new_tokens",
    min_tokens="sampling_params.min_new_tokens",
    logprobs="top_logprobs_num",
    logprob_token_ids="token_ids_logprob",
    prompt_logprob_start="logprob_start_len",
    routes_start="routed_experts_start_len",
)
_GRAMMARS = {"json_schema": "json", "regex": "regex", "ebnf": "grammar"}
"""Fields of grammars, and what `structured_outputs` calls them."""


async def generate_spec(
    body: GenerateRequest, served: ServedModel, reply_id: str
) -> GenerationSpec:
    """What a body asks for; raises `ApiError` for what cannot be served."""
    prompts, names = _prompts(body)
    wanted = _one_for_all(body.sampling_params) or GenerateParams.model_validate({})
    shows = _one_for_all(body.return_logprob) or False
    constraints = Constraints(_grammar(wanted))
    asked = (body.top_logprobs_num or 0) if shows else None
    translation = Translation(served=served, names=NAMES, reply_id=reply_id)
    params = await translation.params(
        wanted, logprobs=asked, constraints=constraints, others=_shown(body, shows=bool(shows))
    )
    if body.return_sampling_mask:
        params = with_support(params, served, "logprobs_mode", "sampling_params.top_k")
    max_tokens = wanted.max_new_tokens
    return GenerationSpec(
        names=names,
        reply_id=reply_id,
        model=_model(body.lora_path, served),
        prompts=prompts,
        params=params,
        form=await _form(body, wanted, params, translation, shows=bool(shows)),
        max_tokens=DEFAULT_MAX_NEW_TOKENS if max_tokens is None else max_tokens,
        fits_context=max_tokens is None,
        constraints=constraints,
        n=wanted.n or 1,
        priority=body.priority or 0,
        cache_salt=body.extra_key or "",
        prompt_names=_names(body.rid, len(prompts)),
        stream_interval=wanted.stream_interval or 1,
    )


def _prompts(body: GenerateRequest) -> tuple[Prompts, ClientNames]:
    if (body.text is None) == (body.input_ids is None):
        raise bad_request("input_ids", "one of text and input_ids must be given")
    field = "text" if body.input_ids is None else "input_ids"
    prompts: Prompts = body.text if body.input_ids is None else body.input_ids  # type: ignore[assignment]
    if isinstance(prompts[0], str) != (field == "text"):
        raise bad_request(field, f"{field} must hold {'texts' if field == 'text' else 'ids'}")
    return prompts, ClientNames(NAMES, prompts=field)


def _names(rid: str | list[str] | None, num_prompts: int) -> tuple[str, ...]:
    """The names of a batch's requests, where each has its own."""
    if not isinstance(rid, list):
        return ()
    if len(rid) != num_prompts:
        words = f"a list rid must have one name for each prompt ({num_prompts}), got {len(rid)}"
        raise bad_request("rid", words)
    return tuple(rid)


def _model(adapter: str | None, served: ServedModel) -> str:
    """The name of an adapter, or of the model where none is asked for."""
    if adapter is None:
        return served.config.model_names[0]
    names = [each.name for each in served.engine.state.adapters]
    if adapter not in names:
        loaded = ", ".join(names) or "none"
        raise bad_request(
            "lora_path", f"lora_path must be an adapter that is loaded ({loaded}), got {adapter!r}"
        )
    return adapter


def _one_for_all(value: Any) -> Any:
    """A value that a batch may have once for each prompt; all must be equal."""
    if not isinstance(value, list):
        return value
    if any(each != value[0] for each in value[1:]):
        raise bad_request(
            "sampling_params",
            "sampling_params and return_logprob must be equal for all prompts "
            "of a body: send a body for each otherwise",
        )
    return value[0] if value else None


def _grammar(wanted: GenerateParams) -> GrammarSpec | None:
    given = {name: value for name in _GRAMMARS if (value := getattr(wanted, name)) is not None}
    if not given:
        return None
    if len(given) > 1:
        raise bad_request("sampling_params", "only one of json_schema, regex and ebnf may be given")
    ((name, value),) = given.items()
    kind, param = _GRAMMARS[name], f"sampling_params.{name}"
    with ClientNames({kind: param}).used():
        spec = wanted_grammar(None, validate(StructuredOutputs, {kind: value}))
    return spec and msgspec.structs.replace(spec, param=param)


def _shown(body: GenerateRequest, *, shows: bool) -> dict[str, Any]:
    """The parameters of which the body itself has fields."""
    mode = body.logprobs_mode
    if body.return_sampling_mask and mode is None:
        mode = "processed_logprobs"
    return {"logprob_token_ids": body.token_ids_logprob if shows else None, "logprobs_mode": mode}


async def _form(
    body: GenerateRequest,
    wanted: GenerateParams,
    params: SamplingParams,
    translation: Translation,
    *,
    shows: bool,
) -> ReplyForm:
    start = -1 if body.logprob_start_len is None else body.logprob_start_len
    form = await translation.form(
        params, stream=bool(body.stream), is_parsed=False, stops=wanted.stop
    )
    prompt = None
    if shows and start >= 0:
        translation.num_top("top_logprobs_num", body.top_logprobs_num)
        prompt = PromptLogprobsParams(
            start=start + 1,
            num_top=body.top_logprobs_num or 0,
            token_ids=params.logprob_token_ids or (),
            mode=params.logprobs_mode,
        )
    return msgspec.structs.replace(
        form,
        silent_ends=frozenset(),
        include_stop=bool(wanted.no_stop_trim),
        prompt_logprobs=prompt,
        first_unvalued=True,
        return_token_ids=True,
        skip_special_tokens=wanted.skip_special_tokens is not False,
        spaces_between=wanted.spaces_between_special_tokens is not False,
        next_token_only=wanted.max_new_tokens == 0,
        weight_versions=True,
        routes=_routes(body, translation.served),
    )


def _routes(body: GenerateRequest, served: ServedModel) -> RoutesParams | None:
    if not body.return_routed_experts:
        for name in ("return_routed_expert_weights", "routed_experts_start_len"):
            if getattr(body, name):
                raise bad_request(name, f"{name} needs return_routed_experts")
        return None
    return routes_params(
        served,
        "return_routed_experts",
        start=body.routed_experts_start_len or 0,
        has_weights=bool(body.return_routed_expert_weights),
    )
