"""Thoughts of the model about questions, before their labels are read.

Each prompt is generated from as a chat's is: drawn by the request's seed until the model ends its
thought, its reply, or the budget does. What is read then follows the thought as a text, closed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec import structs

from sampling.params import SamplingParams
from server.context import Context
from server.endpoints.decisions.question import Reading
from server.errors import ClientNames, bad_request
from server.generation.choice import ReplyChoice
from server.generation.generation import Generation
from server.generation.prepare import prepare
from server.generation.spec import GenerationSpec
from server.generation.translation import Translation
from server.text.shared_prefix import PrefixedTexts


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What the model thought about each prompt.

    Attributes:
        num_prompt_tokens: of the prompts, of their shared beginning once.
        num_cached: tokens of that beginning that were known before.
        num_tokens: drawn for all thoughts.
    """

    texts: list[str]
    num_prompt_tokens: int
    num_cached: int
    num_tokens: int


async def think(
    openings: PrefixedTexts,
    marker: str,
    reading: Reading,
    *,
    place: str,
    model: str,
    digest: str,
    reply_id: str,
    context: Context,
) -> Thoughts:
    """Let the model think after each prompt; raises `ApiError`.

    Args:
        openings: prompts that end within a thought.
        marker: what the model ends it with.
        place: the request's field that has the state, for errors.
        model: the checked name of the model or adapter that thinks.
        digest: as of `Request.adapter_digest`.
    """
    spec = await _spec(openings, marker, reading, place, model, reply_id, context)
    spec = structs.replace(spec, adapter_digest=digest)
    generation = Generation(await prepare(spec, context))
    await generation.submit()
    with generation:
        while await generation.update():
            pass
    choices = generation.choices
    return Thoughts(
        texts=[_text(choice) for choice in choices],
        num_prompt_tokens=len(openings.prefix) + sum(map(len, openings.rests)),
        num_cached=min(*generation.tally.num_cached, len(openings.prefix)),
        num_tokens=sum(choice.num_generated for choice in choices),
    )


async def _spec(
    openings: PrefixedTexts,
    marker: str,
    reading: Reading,
    place: str,
    model: str,
    reply_id: str,
    context: Context,
) -> GenerationSpec:
    config, info = context.config, context.info
    most = config.max_choices_per_request
    if (count := len(openings.rests)) > most:
        raise bad_request(
            "questions",
            f"questions, in every order of their options, must be at most {most} where the model "
            f"thinks about each (--max-choices-per-request), got {count}",
        )
    drawn = structs.asdict(config.defaults)
    drawn.pop("max_tokens")
    params = SamplingParams(
        **drawn,
        seed=reading.seed,
        stop_token_ids=info.eos_token_ids,
        logprobs_mode=config.logprobs_mode,
    )
    names = ClientNames(prompts=place, max_tokens="reasoning.budget")
    translation = Translation(served=context, names=names, reply_id=reply_id)
    return GenerationSpec(
        names=names,
        reply_id=reply_id,
        model=model,
        prompts=[np.concatenate([openings.prefix, rest]) for rest in openings.rests],
        params=params,
        form=await translation.form(params, stream=False, is_parsed=True, stops=[marker]),
        max_tokens=reading.budget or 0,
        fits_context=False,
        priority=reading.priority,
        cache_salt=reading.cache_salt,
    )


def _text(choice: ReplyChoice) -> str:
    piece = choice.take()
    return "" if piece is None else piece.text
