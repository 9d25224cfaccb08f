"""A completion's body as a `GenerationSpec`."""

from __future__ import annotations

from server.endpoints.completions.schema import CompletionRequest
from server.errors import bad_request
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec, Prompts
from server.generation.translation import Translation
from server.schema.model_name import check_model
from server.structured.spec import Constraints
from server.structured.wanted import wanted_grammar
from server.text.fill_in import fill_in_markers


async def completion_spec(
    body: CompletionRequest, served: ServedModel, reply_id: str
) -> GenerationSpec:
    """What a body asks for; raises `ApiError` for what cannot be served."""
    prompts, n = _prompts(body, served), body.n or 1
    model = check_model(body.model, served.config, served.engine.state)
    if body.best_of not in (None, n):
        raise bad_request("best_of", f"best_of must be null or n ({n}), got {body.best_of}")
    translation = Translation(served=served, names=body.client_names, reply_id=reply_id)
    return await translation.spec(
        body,
        model=model,
        prompts=prompts,
        constraints=Constraints(wanted_grammar(body.response_format, body.structured_outputs)),
        most_tokens=served.config.defaults.max_tokens,
        add_special_tokens=body.add_special_tokens is not False,
        cuts_prompts=True,
    )


def _prompts(body: CompletionRequest, served: ServedModel) -> Prompts:
    """The prompts, with what is to follow the text where a suffix is given."""
    most, num_prompts = served.config.max_prompts, len(body.prompt)
    if num_prompts > most:
        words = f"must be at most {most} prompts (--max-completion-prompts), got {num_prompts}"
        raise body.client_names.refuse("prompts", words)
    if not body.suffix:
        return body.prompt
    markers = fill_in_markers(served.tokenizer)
    if markers is None:
        raise bad_request("suffix", "suffix needs a tokenizer that has markers to fill in between")
    if body.echo:
        raise bad_request("echo", "echo must be false with suffix")
    if body.truncate_prompt_tokens is not None:
        words = "truncate_prompt_tokens must be null with suffix: it could cut the markers"
        raise bad_request("truncate_prompt_tokens", words)
    filled = [markers.prompt(item, body.suffix) for item in body.prompt if isinstance(item, str)]
    if len(filled) < num_prompts:
        raise bad_request("prompt", "prompt must be texts with suffix, got token ids")
    return filled
