"""All checks in order, each guarded: what ends one says nothing of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from server.conformance import draws, errors, filters, grammars, logprobs, shapes, streams
from server.conformance.result import CheckResult, Found, NotDoneError
from server.conformance.subject import Subject

Check = Callable[[Subject], Found]

GROUPS: dict[str, tuple[Check, ...]] = {
    "replies": (
        *(shapes.models, shapes.completion, shapes.chat, shapes.max_tokens),
        *(shapes.prompts_times_n, shapes.token_ids, shapes.stop_string),
    ),
    "streams": (streams.ends_with_done, streams.completion, streams.chat, streams.usage),
    "logprobs": (
        *(logprobs.are_given, logprobs.are_a_distribution, logprobs.chosen_equals_its_entry),
        *(logprobs.greedy_is_the_best, logprobs.number_of_tops_changes_nothing),
        *(logprobs.echo_equals_generation, logprobs.offsets_point_into_the_text),
        logprobs.of_a_chat_join_to_its_content,
    ),
    "draws": (
        *(draws.follow_the_distribution, draws.later_tokens_follow_it),
        *(draws.temperature_sharpens, draws.defaults_are_neutral, draws.seeds_repeat),
        *(draws.other_seeds_differ, draws.choices_of_one_seed_differ),
    ),
    "parameters": (
        *(filters.temperature_zero, filters.top_k, filters.top_p, filters.min_p, filters.bias),
        filters.penalties,
    ),
    "grammars": (grammars.json_object, grammars.json_schema, grammars.regex),
    "errors": (
        *(errors.bad_fields, errors.error_object, errors.bodies, errors.unknown_model),
        errors.context_length,
    ),
}
"""The checks; a check's function is its name, its docstring what should be."""


def run_checks(subject: Subject) -> Iterator[CheckResult]:
    """Run every check on a server."""
    for group, checks in GROUPS.items():
        for check in checks:
            yield run_check(group, check, subject)


def run_check(group: str, check: Check, subject: Subject) -> CheckResult:
    """Run one check.

    A reply whose form a check cannot read, such as a missing field, is the server's fault.
    """
    name = check.__name__.replace("_", " ")
    try:
        found = check(subject)
    except NotDoneError as error:
        return CheckResult(group=group, check=name, status=error.status, measured=str(error))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        words = f"a reply of another form: {type(error).__name__} {error}"[:100]
        return CheckResult(group=group, check=name, status="fail", measured=words)
    return CheckResult(
        group=group,
        check=name,
        status="pass" if found.passed else "fail",
        measured=found.measured,
        wanted=found.wanted,
        odds=found.odds,
    )


def meaning(group: str, name: str) -> str:
    """What a check says should be."""
    checks = {check.__name__.replace("_", " "): check for check in GROUPS[group]}
    return (checks[name].__doc__ or "").partition("\n")[0]
