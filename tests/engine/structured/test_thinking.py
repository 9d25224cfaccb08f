"""Thoughts within their budgets, and grammars after them, on the demo model."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from engine.arrays import LogprobArrays
from engine.messages.request import Request, ThinkingBudget
from engine.messages.step_output import Finish
from tests.engine.structured.constrained import (
    EAGLE,
    EOS,
    NGRAM,
    TOKENIZER,
    Reader,
    make,
    of_regex,
    request,
)

SPECULATIONS = {"none": None, "ngram": NGRAM} | {f"eagle {k}": v for k, v in EAGLE.items()}
BEGIN = tuple(TOKENIZER.encode("(self"))
END = tuple(TOKENIZER.encode("):\n    return"))
DIGITS = of_regex("[0-9]{2}")
PROSE = '"""Return the'
TEXT = "def first(self):\n    pass\n\n\ndef second"


def budget(num_tokens: int, **fields: Any) -> ThinkingBudget:
    return ThinkingBudget(num_tokens=num_tokens, begin=BEGIN, end=END, **fields)


def place_of(marker: tuple[int, ...], ids: list[int], start: int = 0) -> int | None:
    """Where a marker comes first."""
    found = (i for i in range(start, len(ids)) if tuple(ids[i : i + len(marker)]) == marker)
    return next(found, None)


def thinking_requests(count: int, **fields: Any) -> list[Request]:
    """Requests that think at once, under every small budget, and answer with two digits."""
    return [
        request(
            handle,
            DIGITS,
            (TEXT + "(self", PROSE)[handle % 2],
            after=END,
            thinking_budget=budget(handle % 7, are_open=True),
            seed=handle,
            n=1 + handle % 2,
            temperature=(0.0, 0.7, 1.0)[handle % 3],
            max_tokens=40,
            emit_interval=1 + handle % 5,
            **fields,
        )
        for handle in range(count)
    ]


@pytest.mark.parametrize(
    ("speculation", "num_blocks"),  # 34: one context barely fits, so rows fall
    [("none", 34), ("ngram", 400), ("eagle greedy", 400), ("eagle gumbel", 34)],
)
def test_thoughts_end_within_their_budget(speculation: str, num_blocks: int) -> None:
    reader = Reader(make(num_blocks=num_blocks, speculation=SPECULATIONS[speculation]))
    reader.run(*thinking_requests(14))
    assert len(END) > 1
    lengths: dict[int, set[int]] = {}
    for (handle, choice), ids in reader.tokens.items():
        assert reader.finish[handle, choice] == Finish.STOP, reader.errors
        end = place_of(END, ids)
        assert end is not None
        assert end <= handle % 7
        lengths.setdefault(handle % 7, set()).add(end)
        answer = TOKENIZER.decode(ids[end + len(END) :], skip_special_tokens=True)
        assert re.fullmatch("[0-9]{2}", answer)
    assert len([limit for limit, found in lengths.items() if limit in found]) > 3


def replies(reader: Reader) -> dict[tuple[int, int], list[int]]:
    reader.run(*thinking_requests(10))
    return dict(reader.tokens)


@pytest.fixture(scope="module")
def plain_replies() -> dict[tuple[int, int], list[int]]:
    return replies(Reader(make()))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"num_blocks": 34, "max_rows": 6}, id="preempted"),
        pytest.param({"max_step_tokens": 16, "max_rows": 4}, id="chunked"),
        pytest.param(
            {"speculation": structs.replace(EAGLE["gumbel"], rejection_sample_method="coupled")},
            id="coupled",
        ),
    ],
)
def test_seeded_thoughts_do_not_depend_on_how_they_run(
    fields: dict[str, Any], plain_replies: dict[tuple[int, int], list[int]]
) -> None:
    assert replies(Reader(make(**fields))) == plain_replies


@pytest.mark.parametrize("speculation", ["none", "eagle gumbel"])
def test_a_budget_within_a_choice_bounds_each_of_its_thoughts(speculation: str) -> None:
    """Without a grammar, thoughts open wherever the model opens them; budgets count them all."""
    reader = Reader(make(speculation=SPECULATIONS[speculation]))
    reader.run(
        *(
            request(
                h, None, TEXT, thinking_budget=budget(4), seed=h, max_tokens=60, temperature=0.7
            )
            for h in range(10)
        )
    )
    num_thoughts = []
    for ids in reader.tokens.values():
        thoughts, at = 0, 0
        while (begin := place_of(BEGIN, ids, at)) is not None:
            at = begin + len(BEGIN)
            end = place_of(END, ids, at)
            if end is None:  # cut by length within the marker
                assert len(ids) - at <= max(4 - thoughts, 0) + len(END)
                break
            thoughts += end - at
            at = end + len(END)
        num_thoughts.append(thoughts)
    assert max(num_thoughts) == 4


@pytest.mark.parametrize("speculation", ["none", "eagle gumbel"])
def test_logprobs_say_that_a_marker_was_forced(speculation: str) -> None:
    """The bound is that of float32, as in `test_constrained.py`."""
    asked: dict[str, Any] = {
        "seed": 3,
        "max_tokens": 12,
        "thinking_budget": budget(3, are_open=True),
        "logprobs": 0,
    }
    reader = Reader(make(speculation=SPECULATIONS[speculation]))
    modes = ("raw_logprobs", "processed_logprobs")
    reader.run(
        *(
            request(i, None, PROSE, logprobs_mode=mode, kept_logprob=True, **asked)
            for i, mode in enumerate(modes)
        )
    )
    raw, processed = (LogprobArrays.concat(reader.logprobs[i, 0]) for i in range(2))
    ids = reader.tokens[0, 0]
    assert ids == reader.tokens[1, 0]
    assert place_of(END, ids) == 3
    forced = np.arange(3, 3 + len(END))
    assert (processed.chosen[forced] == 0).all()
    assert (processed.kept[forced] < -0.01).all()
    np.testing.assert_allclose(processed.kept + processed.chosen, raw.chosen, atol=1e-4)
    others = np.delete(np.arange(len(ids)), forced)
    assert (processed.kept[others] == 0).all()


@pytest.mark.parametrize("speculation", ["none", "eagle gumbel"])
def test_a_reply_that_skips_its_thoughts_begins_with_the_grammar(speculation: str) -> None:
    opening, after = tuple(TOKENIZER.encode("(self")), tuple(TOKENIZER.encode("):\n"))
    fields: dict[str, Any] = {"after": after, "unless_opened": opening, "max_tokens": 60}
    reader = Reader(make(speculation=SPECULATIONS[speculation]))
    grammar = of_regex("[0-9]{2}|[(][a-z]")
    prompts = [TEXT, "x = "]
    reader.run(
        *(
            request(h, grammar, prompts[h % 2], seed=h, n=2, temperature=0.7, **fields)
            for h in range(16)
        )
    )
    kinds = []
    for (handle, choice), ids in reader.tokens.items():
        assert reader.finish[handle, choice] in (Finish.STOP, Finish.LENGTH), reader.errors
        is_opened = tuple(ids[: len(opening)]) == opening
        kinds.append(is_opened)
        if is_opened and (end := place_of(after, ids, len(opening))) is not None:
            ids = ids[end + len(after) :]
        elif is_opened:
            continue
        text = TOKENIZER.decode(ids, skip_special_tokens=True)
        assert re.fullmatch("[0-9]{2}|[(][a-z]", text)
    assert 3 < sum(kinds) < len(kinds) - 3


@pytest.mark.parametrize("speculation", ["none", "ngram", "eagle gumbel"])
def test_thoughts_do_not_end_the_reply_in_front_of_its_grammar(speculation: str) -> None:
    """An end of text is made all but certain; thoughts of six tokens and two digits come first."""
    reader = Reader(make(speculation=SPECULATIONS[speculation]))
    ends = ({EOS: 60.0},) * 3
    reader.run(
        *(
            request(
                handle,
                (DIGITS, of_regex("[0-9]*"))[handle % 2],
                PROSE,
                after=END,
                thinking_budget=budget(6, are_open=True),
                seed=handle,
                max_tokens=40,
                logit_bias=bias,
            )
            for handle, bias in enumerate((*ends, *ends))
        )
    )
    for (handle, _), ids in reader.tokens.items():
        assert reader.finish[handle, 0] == Finish.STOP, reader.errors
        if handle % 2:  # an empty text is one of the grammar's, so thoughts may end it
            assert ids == [EOS]
            continue
        end = place_of(END, ids)
        assert end is not None
        answer = TOKENIZER.decode(ids[end + len(END) :], skip_special_tokens=True)
        assert re.fullmatch("[0-9]{2}", answer)
