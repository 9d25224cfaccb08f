"""What filters and biases keep: no token outside, and the kept ones in proportion."""

from __future__ import annotations

from server.conformance.draws import counted, distribution, first_tokens
from server.conformance.result import Found, NotDoneError
from server.conformance.subject import EXTENSIONS, Subject, tokens_of

NUM_DRAWS, KEPT = 200, 3


def _filtered(subject: Subject, name: str, value: float) -> Found:
    """Draws under one filter that keeps the `KEPT` most likely tokens."""
    if name in EXTENSIONS and name not in subject.extensions:
        raise NotDoneError("refused", f"{name} is not taken")
    probabilities = distribution(subject)
    order = sorted(probabilities, key=lambda token: -probabilities[token])
    if len(order) <= KEPT:
        raise NotDoneError("not judged", f"it reports too few top logprobs ({len(order)})")
    kept = {token: probabilities[token] for token in order[:KEPT]}
    drawn = first_tokens(subject, NUM_DRAWS, {**subject.neutral, name: value})
    outside = sum(token.name not in kept for token in drawn)
    if outside:
        words = f"{outside} of {NUM_DRAWS} outside the {KEPT} kept tokens"
        return Found(passed=False, measured=words, wanted="0")
    total = sum(kept.values())
    return counted(drawn, {token: p / total for token, p in kept.items()})


def top_k(subject: Subject) -> Found:
    """top_k 3 draws the three most likely tokens, in proportion."""
    return _filtered(subject, "top_k", KEPT)


def top_p(subject: Subject) -> Found:
    """top_p draws the shortest prefix of tokens whose mass reaches it: here of three."""
    descending = sorted(distribution(subject).values(), reverse=True)
    between = sum(descending[:2]) + sum(descending[:3])
    return _filtered(subject, "top_p", between / 2)


def min_p(subject: Subject) -> Found:
    """min_p draws the tokens with at least that share of the highest probability: here three."""
    descending = sorted(distribution(subject).values(), reverse=True)
    between = sum(descending[2:4]) / 2
    return _filtered(subject, "min_p", between / descending[0])


def bias(subject: Subject) -> Found:
    """A bias of 100 makes a token sure."""
    token_id = 65
    try:
        reply = subject.complete(
            **{**subject.neutral, "max_tokens": 4}, logit_bias={str(token_id): 100}, logprobs=1
        )
    except NotDoneError as error:
        raise NotDoneError(error.status, f"logit_bias: {error}") from None
    names = {token.name for token in tokens_of(reply["choices"][0])}
    text = reply["choices"][0]["text"]
    passed = len(names) == 1 or (not names and len(set(text)) <= 1)
    return Found(passed=passed, measured=f"{len(names)} tokens in {text[:20]!r}", wanted="1")


def temperature_zero(subject: Subject) -> Found:
    """Greedy texts repeat, whatever runs beside them."""
    texts = {choice["text"] for choice in subject.all_choices([{"max_tokens": 16}] * 8)}
    return Found(passed=len(texts) == 1, measured=f"{len(texts)} texts", wanted="1")


def penalties(subject: Subject) -> Found:
    """A frequency penalty of 2 makes a biased token give way to others."""
    fields = {"max_tokens": 40, "logit_bias": {"65": 30}, "logprobs": 1, "frequency_penalty": 2}
    names = {t.name for t in tokens_of(subject.choice(**{**subject.neutral, **fields}))}
    enough = len(names) > 1
    # Its bias of 30 is gone after 15 occurrences; what may be left of its lead, after 40.
    return Found(passed=enough, measured=f"{len(names)} tokens", wanted="more than 1")
