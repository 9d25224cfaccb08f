"""Masks filled for drafts equal those of a matcher that consumes token by token."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.structured.masks import MaskFiller
from tests.engine.structured.constrained import EOS, ll_tokenizer, of_regex, of_schema

VOCAB_SIZE = 8192 + 45  # ids beyond the tokenizer's own, and a last word that is not full
WORDS = -(-VOCAB_SIZE // 32)
STALE = 0x5A5A5A5A
SOURCES = [
    of_schema("flat"),
    of_schema("list"),
    of_regex("[a-c]{2}(x|y)?"),
    of_regex("(ab|a)*"),
    LLMatcher.grammar_from_lark('start: "yes" | "no" | "yesterday"'),
]


def mask_of(matcher: LLMatcher) -> npt.NDArray[np.int32]:
    return np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[:WORDS]


def allowed(matcher: LLMatcher) -> list[int]:
    bits = np.unpackbits(mask_of(matcher).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def walk(matcher: LLMatcher, rng: random.Random, count: int) -> None:
    """Consume some tokens that the grammar allows, short of its end."""
    for _ in range(count):
        ids = [token for token in allowed(matcher) if token != EOS]
        if not ids or matcher.is_stopped():
            return
        assert matcher.consume_token(rng.choice(ids))


def drafts_for(matcher: LLMatcher, rng: random.Random) -> list[int]:
    """A few drafts of which most are allowed, ends among them."""
    ahead, drafts = matcher.deep_copy(), []
    for _ in range(rng.randrange(5)):
        ids = [] if ahead.is_error() else allowed(ahead)
        drafts.append(rng.choice(ids) if ids and rng.random() < 0.8 else rng.randrange(VOCAB_SIZE))
        if not ahead.is_error():
            ahead.consume_token(drafts[-1])
    return drafts


def test_masks_behind_drafts_equal_a_plain_loop_and_nothing_is_left_in_the_matchers() -> None:
    rng, tokenizer = random.Random(0), ll_tokenizer(VOCAB_SIZE)
    buffer = np.full((256, WORDS), STALE, dtype=np.int32)
    filler = MaskFiller(buffer, [EOS], 2)
    refused = ended = 0
    for _ in range(60):
        matchers = [LLMatcher(tokenizer, rng.choice(SOURCES), log_level=0) for _ in range(8)]
        for matcher in matchers:
            walk(matcher, rng, rng.randrange(7))
        wanted = [(matcher, drafts_for(matcher, rng)) for matcher in matchers]
        before = [mask_of(matcher).copy() for matcher in matchers]
        buffer[:] = STALE
        counts = filler.fill(wanted).tolist()
        slot = 0
        for (matcher, drafts), count, mask in zip(wanted, counts, before, strict=True):
            ahead = matcher.deep_copy()
            for place in range(count):
                assert (buffer[slot + place] == mask_of(ahead)).all()
                if place + 1 < count:
                    assert ahead.consume_token(drafts[place])
            if count <= len(
                drafts
            ):  # it says that the draft after the last mask cannot be accepted
                is_end = drafts[count - 1] == EOS
                assert is_end or not ahead.consume_token(drafts[count - 1])
                refused, ended = refused + (not is_end), ended + is_end
            assert (mask_of(matcher) == mask).all()
            assert not matcher.is_error()
            slot += 1 + len(drafts)
        assert (buffer[slot:] == STALE).all(), "a mask outside its slots"
    assert refused > 20
    assert ended > 5


def test_padding_is_never_allowed() -> None:
    matcher = LLMatcher(ll_tokenizer(VOCAB_SIZE), of_regex("(.|\n)*"), log_level=0)
    buffer = np.full((1, WORDS), -1, dtype=np.int32)
    MaskFiller(buffer, [EOS], 1).fill([(matcher, [])])
    bits = np.unpackbits(buffer.view(np.uint8), bitorder="little")
    assert bits[:8192].sum() > 8000
    assert not bits[8192:].any()


def test_each_matcher_consumes_its_own_tokens() -> None:
    tokenizer = ll_tokenizer(VOCAB_SIZE)
    sources = [of_regex("[a-c]*"), of_regex("[a-c]*"), of_regex("x")]
    matchers = [LLMatcher(tokenizer, source, log_level=0) for source in sources]
    a, b, c = (tokenizer.tokenize_str(text)[0] for text in "abc")
    filler = MaskFiller(np.zeros((4, WORDS), dtype=np.int32), [EOS], 2)
    filler.consume([(matchers[0], [a, b, c]), (matchers[1], []), (matchers[2], [a])])
    assert [matcher.is_error() for matcher in matchers] == [False, False, True]
    assert matchers[0].rollback(3), "three tokens were consumed"
    assert not matchers[1].rollback(1), "none was"
