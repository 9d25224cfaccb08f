"""How many choices a request may have and how large its reply may be.

A few bytes can ask for millions of either, so both are bounded before anything is made of them.
"""

from __future__ import annotations

from server.config import ServerConfig
from server.errors import bad_request
from server.generation.prompts import Prompt
from server.generation.spec import GenerationSpec
from server.schema.priority import check_priority

MAX_ALLOWED_IDS_SENT = 1 << 22
"""Each prompt goes to the engine with parameters of its own, where each id takes 36 bytes."""


def check_counts(spec: GenerationSpec, config: ServerConfig) -> None:
    """Raise a 400 for more choices than one request may have, or for ids that are too many to be
    sent with each prompt; and for a priority that would be ignored.
    """
    num_prompts, n, limit = len(spec.prompts), spec.n, config.max_choices_per_request
    if n > config.max_choices:
        words = f"must be at most {config.max_choices} (--max-n-sequences), got {n}"
        raise spec.names.refuse("n", words)
    if num_prompts * n > limit:
        raise bad_request(
            "n",
            f"prompts times n must be at most {limit} (--max-choices-per-request), got "
            f"{num_prompts} prompts x n {n} = {num_prompts * n}",
        )
    num_ids = len(spec.params.allowed_token_ids or ())
    if num_prompts * num_ids > MAX_ALLOWED_IDS_SENT:
        raise bad_request(
            "allowed_token_ids",
            f"prompts times allowed_token_ids must be at most {MAX_ALLOWED_IDS_SENT}, got "
            f"{num_prompts} prompts x {num_ids} ids",
        )
    check_priority(spec.priority, config)


def check_reply_size(spec: GenerationSpec, prompts: list[Prompt], config: ServerConfig) -> None:
    """Raise a 400 for a reply that could hold more values than the server keeps for one request.

    A token is a value, and so is each logprob reported of it. What is reported of a prompt is
    repeated by each of its choices.
    """
    limit, form, n, names = config.max_reply_values, spec.form, spec.n, spec.names
    num_top, num_ids = form.num_top or 0, len(form.explicit_ids or ())
    most = max(max(prompt.max_tokens for prompt in prompts), 1)
    generated = sum(max(prompt.max_tokens, 1) for prompt in prompts) * n * (1 + num_top + num_ids)
    prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts) if form.shows_prompt else 0
    wanted = None if form.by_part else form.prompt_logprobs  # parts are not kept
    prompt_top, prompt_ids = (wanted.num_top, wanted.num_explicit) if wanted else (0, 0)
    shown = prompt_tokens * n * (1 + prompt_top + prompt_ids)
    if generated + shown <= limit:
        return
    words = f"{len(prompts)} prompts x n {n} x {names['max_tokens']} {most} x (1 + {num_top} "
    words += f"logprobs + {num_ids} logprob_token_ids)"
    if shown:
        words += f" + n {n} x {prompt_tokens} prompt tokens x (1 + {prompt_top} prompt logprobs + "
        words += f"{prompt_ids} prompt_logprob_token_ids)"
    raise bad_request(
        names["max_tokens" if generated >= shown else "prompts"],
        f"the reply could hold {generated + shown} values, at most {limit} "
        f"(--max-reply-values): {words}",
        "reply_too_large",
    )
