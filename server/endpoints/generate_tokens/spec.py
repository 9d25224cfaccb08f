"""A body of token ids as a `GenerationSpec`."""

from __future__ import annotations

import msgspec

from engine.messages.request import RoutesParams
from server.endpoints.generate_tokens.schema import GenerateTokensRequest, TokenSamplingParams
from server.errors import bad_request
from server.generation.routes import routes_params
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec
from server.generation.support import with_support
from server.generation.translation import Translation, checked_options
from server.schema.model_name import check_model
from server.structured.spec import Constraints
from server.structured.wanted import wanted_grammar

NAMES = TokenSamplingParams.client_names


async def tokens_spec(
    body: GenerateTokensRequest, served: ServedModel, reply_id: str
) -> GenerationSpec:
    """What a body asks for; raises `ApiError` for what cannot be served."""
    model, wanted = (
        check_model(body.model, served.config, served.engine.state),
        body.sampling_params,
    )
    if not len(body.token_ids):
        raise NAMES.refuse("prompts", "must not be empty, got an empty list")
    options, constraints = (
        checked_options(body),
        Constraints(wanted_grammar(None, wanted.structured_outputs)),
    )
    if body.return_sampling_mask and wanted.logprobs_mode is None:
        wanted.logprobs_mode = "processed_logprobs"
    translation = Translation(served=served, names=NAMES, reply_id=reply_id)
    params = await translation.params(wanted, logprobs=wanted.logprobs, constraints=constraints)
    if body.return_sampling_mask:
        params = with_support(params, served, NAMES["logprobs_mode"], NAMES["top_k"])
    form = await translation.full_form(wanted, params, stream=bool(body.stream))
    return GenerationSpec(
        names=NAMES,
        reply_id=reply_id,
        model=model,
        prompts=[body.token_ids],
        params=params,
        form=msgspec.structs.replace(
            form,
            tokens_as_ids=wanted.return_tokens_as_token_ids is not False,
            return_token_ids=True,
            **translation.when_usage(options),
            weight_versions=True,
            routes=_routes(body, served),
        ),
        max_tokens=served.info.max_model_len if wanted.max_tokens is None else wanted.max_tokens,
        fits_context=wanted.max_tokens is None,
        constraints=constraints,
        n=wanted.n or 1,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


def _routes(body: GenerateTokensRequest, served: ServedModel) -> RoutesParams | None:
    """The experts that are reported: where a server can, always, as vLLM does."""
    start = body.sampling_params.routed_experts_prompt_start
    weights = bool(body.return_routed_expert_weights)
    named = {
        "return_routed_experts": bool(body.return_routed_experts),
        "return_routed_expert_weights": weights,
        NAMES["routes_start"]: start is not None,
    }
    asked = [name for name, is_asked in named.items() if is_asked]
    if body.return_routed_experts is False and asked:
        raise bad_request(asked[0], f"{asked[0]} needs return_routed_experts not to be false")
    if body.return_routed_experts is False or not (asked or served.info.num_routed):
        return None
    return routes_params(
        served,
        asked[0] if asked else "return_routed_experts",
        start=start or 0,
        has_weights=weights,
    )
