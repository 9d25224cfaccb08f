"""An audit's table, its sentence, its JSON and its exit status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from server.audit.verdict import Finding

EXIT_DRAWN, EXIT_NOT_DRAWN, EXIT_NOT_AUDITED = 0, 1, 3

_HEADER = ("line", "choice", "tokens", "equal", "explained", "noise", "logprobs", "odds", "verdict")
_WIDTHS = (5, 7, 7, 7, 10, 9, 9, 9, 0)


def header() -> str:
    """The table's first line."""
    return _row(_HEADER)


def line(verdict: Finding) -> str:
    """A choice's line."""
    if verdict.refusal is not None:
        return _row((verdict.line, verdict.index, *["-"] * 6, verdict.words))
    gap = "-" if verdict.logprob_gap is None else f"{verdict.logprob_gap:.1g}"
    odds = "-" if verdict.is_greedy else f"1e{verdict.log10_odds:.0f}"
    noise = f"{verdict.noise:.1g}" if verdict.explained else "-"
    counts = verdict.tokens, verdict.equal, verdict.explained
    return _row((verdict.line, verdict.index, *counts, noise, gap, odds, verdict.words))


def _row(cells: Sequence[object]) -> str:
    padded = [str(cell).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    return " ".join(padded).rstrip()


def conclusion(verdicts: Sequence[Finding], where: str, noise: float) -> str:
    """What an audit says in plain words.

    Args:
        where: whose logits were taken.
        noise: allowed error of a logit, in nats.
    """
    audited = [verdict for verdict in verdicts if verdict.refusal is None]
    wrong = [verdict for verdict in audited if not verdict.is_drawn]
    left_out = len(verdicts) - len(audited)
    rest = f" {left_out} could not be audited." if left_out else ""
    if not audited:
        return f"No choice could be audited: {left_out} of {len(verdicts)}."
    tokens = sum(verdict.tokens for verdict in audited)
    if wrong:
        return (
            f"{len(wrong)} of {len(audited)} choices were not drawn by {where} with their seeds "
            f"and parameters.{rest}"
        )
    explained = sum(verdict.explained for verdict in audited)
    by_noise = f", {explained} of them with logits off by at most {noise:g} nats" * bool(explained)
    odds = sum(verdict.log10_fresh for verdict in audited)
    return (
        f"{where} drew all {tokens} tokens of {len(audited)} choices with their seeds and "
        f"parameters{by_noise}. Tokens drawn by anything else would pass with odds of at most "
        f"1e{odds:.0f}.{rest}"
    )


def document(verdicts: Sequence[Finding], where: str, noise: float) -> dict[str, Any]:
    """The report as JSON."""
    choices = [
        {**structs.asdict(verdict), "is_drawn": verdict.is_drawn, "words": verdict.words}
        for verdict in verdicts
    ]
    return {
        "model": where,
        "allowed_noise": noise,
        "conclusion": conclusion(verdicts, where, noise),
        "choices": choices,
    }


def status(verdicts: Sequence[Finding]) -> int:
    """The exit status: 1 where a choice was not drawn, 3 where one could not be audited."""
    if any(verdict.refusal is None and not verdict.is_drawn for verdict in verdicts):
        return EXIT_NOT_DRAWN
    if any(verdict.refusal is not None for verdict in verdicts) or not verdicts:
        return EXIT_NOT_AUDITED
    return EXIT_DRAWN
