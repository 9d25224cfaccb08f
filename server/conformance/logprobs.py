"""Logprobs: those of a distribution, the same whatever else is asked, the same by echo."""

from __future__ import annotations

import math

from server.conformance.result import Found, NotDoneError
from server.conformance.subject import Subject, TokenLogprob, tokens_of

EXCESS = 1e-3
"""Probabilities of a top list may sum to 1 and so much for rounding, of bfloat16 logits too."""
AGREE = 0.25
"""Nats between two computations of one value: other orders of sums, in bfloat16 at worst."""


def _tokens(subject: Subject, **fields: object) -> list[TokenLogprob]:
    tokens = tokens_of(subject.choice(logprobs=subject.num_top, **fields))
    if not tokens:
        raise NotDoneError("fail", "logprobs were asked for and are not there")
    return tokens


def are_given(subject: Subject) -> Found:
    """Logprobs that are asked for are reported, or refused."""
    choice = subject.choice(logprobs=1)
    count = len(tokens_of(choice))
    words = f"{count} tokens" if count else "asked for, and left out without a word"
    return Found(passed=count > 0, measured=words)


def are_a_distribution(subject: Subject) -> Found:
    """No logprob is above 0, and those of a top list sum to at most 1."""
    tokens = _tokens(subject)
    highest = max(max([token.logprob, *token.top.values()]) for token in tokens)
    mass = max(sum(map(math.exp, token.top.values())) for token in tokens)
    passed = highest <= 1e-6 and mass <= 1 + EXCESS
    return Found(
        passed=passed,
        measured=f"highest {highest:.2g}, mass {mass:.5f}",
        wanted=f"at most 0, at most {1 + EXCESS}",
    )


def chosen_equals_its_entry(subject: Subject) -> Found:
    """A token's logprob is its entry's in the top list, to the last digit."""
    tokens = [token for token in _tokens(subject) if token.name in token.top]
    gaps = [abs(token.logprob - token.top[token.name]) for token in tokens]
    if not gaps:
        return Found(passed=False, measured="no greedy token is in its own top list")
    return Found(passed=max(gaps) == 0, measured=f"{max(gaps):.2g} nats apart", wanted="0")


def greedy_is_the_best(subject: Subject) -> Found:
    """A greedy token has the highest logprob of its top list."""
    tokens = [token for token in _tokens(subject) if token.top]
    worse = sum(token.logprob < max(token.top.values()) for token in tokens)
    return Found(passed=worse == 0, measured=f"{worse} of {len(tokens)} are not", wanted="0")


def number_of_tops_changes_nothing(subject: Subject) -> Found:
    """A token's logprob does not depend on how many others are reported."""
    many = _tokens(subject)
    few = tokens_of(subject.choice(logprobs=1))
    pairs = [(a, b) for a, b in zip(many, few, strict=False) if a.name == b.name]
    gap = max((abs(a.logprob - b.logprob) for a, b in pairs), default=math.inf)
    return Found(passed=gap <= AGREE, measured=f"{gap:.2g} nats", wanted=f"at most {AGREE}")


def echo_equals_generation(subject: Subject) -> Found:
    """A text's logprobs by echo are those with which it was generated."""
    choice = subject.choice(logprobs=1, max_tokens=12)
    generated = tokens_of(choice)
    text = subject.prompt + choice["text"]
    echoed = subject.choice(prompt=text, echo=True, logprobs=1, max_tokens=1)
    if not echoed["text"].startswith(text):
        return Found(passed=False, measured="echo was asked for, and the text lacks the prompt")
    shown = echoed.get("logprobs") or {}
    own = list((choice.get("logprobs") or {}).get("tokens") or ())
    names, values = shown.get("tokens") or [], shown.get("token_logprobs") or []
    start = len(names) - 1 - len(own)
    if start < 1 or names[start:-1] != own or None in values[start:-1]:
        raise NotDoneError("not judged", "the text is cut into other tokens")
    gaps = [abs(a - b.logprob) for a, b in zip(values[start:-1], generated, strict=True)]
    return Found(
        passed=max(gaps) <= AGREE, measured=f"{max(gaps):.2g} nats", wanted=f"at most {AGREE}"
    )


def offsets_point_into_the_text(subject: Subject) -> Found:
    """Each token's text begins at its `text_offset`, as far as tokens are whole characters."""
    choice = subject.choice(logprobs=1, max_tokens=12)
    shown = choice.get("logprobs") or {}
    tokens, offsets = shown.get("tokens"), shown.get("text_offset")
    if not isinstance(tokens, list) or not isinstance(offsets, list):
        raise NotDoneError("not judged", "it reports no text_offset")
    start = offsets[0] if offsets else 0  # some count from the prompt's beginning
    wrong = sum(
        "\ufffd" not in token and not choice["text"].startswith(token, offset - start)
        for token, offset in zip(tokens, offsets, strict=True)
    )
    return Found(passed=wrong == 0, measured=f"{wrong} of {len(tokens)} do not", wanted="0")


def of_a_chat_join_to_its_content(subject: Subject) -> Found:
    """The bytes of a chat's logprob entries are the message's; each entry has its top tokens."""
    choice = subject.chat(logprobs=True, top_logprobs=2)["choices"][0]
    entries = (choice.get("logprobs") or {}).get("content")
    if not isinstance(entries, list):
        return Found(passed=False, measured="asked for, and left out without a word")
    content = (choice["message"].get("content") or "").encode()
    joined = b"".join(bytes(entry.get("bytes") or ()) for entry in entries)
    num_top = [len(entry.get("top_logprobs") or ()) for entry in entries]
    passed = joined == content and all(num >= 2 for num in num_top)
    words = f"{joined[:30]!r}, {min(num_top, default=0)} top tokens"
    return Found(passed=passed, measured=words, wanted=f"{content[:30]!r}, 2")
