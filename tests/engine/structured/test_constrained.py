"""Replies under grammars on the demo model, in all that an engine does with choices."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from engine.arrays import LogprobArrays
from engine.messages.step_output import Finish
from tests.engine.structured.constrained import (
    EAGLE,
    ENDS,
    NGRAM,
    PROMPTS,
    SCHEMAS,
    TOKENIZER,
    Reader,
    check_json,
    make,
    many_requests,
    of_regex,
    of_schema,
    request,
)
from tests.engine.traffic import FRONTEND

SPECULATIONS = {"none": None, "ngram": NGRAM} | {f"eagle {k}": v for k, v in EAGLE.items()}


@pytest.mark.parametrize("num_blocks", [34, 400])  # 34: one context barely fits, so rows fall
@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_finished_replies_are_valid(speculation: str, num_blocks: int) -> None:
    engine = make(num_blocks=num_blocks, max_rows=12, speculation=SPECULATIONS[speculation])
    reader = Reader(engine)
    # How many run at a time depends on how long their compiles take: of 20, 14 rows fell at least.
    schemas = many_requests(reader, 20 if num_blocks == 34 else 14)
    finished = sum(check_json(reader, h, SCHEMAS[name]) for h, name in schemas.items() if name)
    assert finished >= 10
    stats = engine.stats()
    assert stats.grammars is not None
    assert stats.grammars.num_errors == stats.empty_rows == stats.nan_rows == 0
    constrained = [name for name in schemas.values() if name]
    compiles, hits = stats.grammars.num_compiles, stats.grammars.num_cache_hits
    assert len(set(constrained)) <= compiles < len(constrained)
    assert compiles + hits == len(constrained)
    if num_blocks == 34:
        assert stats.num_preemptions > 0
    if speculation.startswith("eagle"):
        assert stats.drafts is not None
        assert stats.drafts.num_accepted > 30


def replies(reader: Reader) -> dict[tuple[int, int], list[int]]:
    many_requests(reader, 10, seed=3)
    return dict(reader.tokens)


@pytest.fixture(scope="module")
def plain_replies() -> dict[tuple[int, int], list[int]]:
    return replies(Reader(make()))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"num_blocks": 34, "max_rows": 6}, id="preempted"),
        pytest.param({"max_step_tokens": 16, "max_rows": 4}, id="chunked"),
        pytest.param({"prefix_caching": False}, id="no shared blocks"),
        pytest.param(
            {"speculation": structs.replace(EAGLE["greedy"], rejection_sample_method="coupled")},
            id="coupled",
        ),
        pytest.param({"speculation": EAGLE["greedy"]}, id="greedy drafts"),
    ],
)
def test_seeded_replies_do_not_depend_on_how_they_run(
    fields: dict[str, Any], plain_replies: dict[tuple[int, int], list[int]]
) -> None:
    assert replies(Reader(make(**fields))) == plain_replies


@pytest.mark.parametrize("speculation", ["ngram", "eagle gumbel"])
def test_coupled_drafts_keep_to_the_grammar(speculation: str) -> None:
    chosen = SPECULATIONS[speculation]
    assert chosen is not None
    coupled = structs.replace(chosen, rejection_sample_method="coupled")
    reader = Reader(make(speculation=coupled))
    schemas = many_requests(reader, 8, seed=5)
    finished = sum(check_json(reader, h, SCHEMAS[name]) for h, name in schemas.items() if name)
    assert finished >= 3


def test_synthetic_acceptance_would_keep_what_a_grammar_forbids_so_it_serves_none() -> None:
    synthetic = structs.replace(
        NGRAM, rejection_sample_method="synthetic", synthetic_acceptance_length=2.0
    )
    engine = make(speculation=synthetic)
    assert engine.info.grammar_error is not None
    assert "synthetic" in engine.info.grammar_error
    reader = Reader(engine)
    reader.run(request(0, of_schema("flat")))
    assert reader.finish == {(0, 0): Finish.GRAMMAR}
    assert "synthetic" in reader.errors[0]


def test_aborted_choices_leave_the_others_to_their_grammars() -> None:
    reader = Reader(engine := make(max_rows=6, speculation=EAGLE["gumbel"]))
    rng = random.Random(4)
    for handle in range(12):
        engine.submit(FRONTEND, request(handle, of_schema("flat"), seed=handle, n=2))
        if rng.random() < 0.5:
            engine.abort(FRONTEND, rng.randrange(handle + 1), rng.choice([-1, 0, 1]))
        for _ in range(rng.randrange(4)):
            if engine.has_work:
                reader.step()
    reader.run()
    ends = list(reader.finish.values())
    assert ends.count(Finish.ABORT) > 2
    for (handle, choice), finish in list(reader.finish.items()):
        if finish == Finish.ABORT:
            del reader.tokens[handle, choice]
            del reader.finish[handle, choice]
    assert sum(check_json(reader, handle, SCHEMAS["flat"]) for handle in range(12)) > 5


@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_a_grammar_begins_behind_its_marker(speculation: str) -> None:
    """The marker comes soon, under speculation also inside drafts; before it everything is allowed,
    and after it two digits."""
    marker = tuple(TOKENIZER.encode("):\n"))
    reader = Reader(make(speculation=SPECULATIONS[speculation]))
    digits = of_regex("[0-9]{2}")
    text = "def first(self):\n    pass\n\n\ndef second(self"
    reader.run(*(request(h, digits, text, after=marker, seed=h, max_tokens=40) for h in range(12)))
    begun = 0
    for handle in range(12):
        ids = reader.tokens[handle, 0]
        places = [i for i in range(len(ids)) if tuple(ids[i : i + len(marker)]) == marker]
        if not places:
            continue
        begun += 1
        after = TOKENIZER.decode(ids[places[0] + len(marker) :], skip_special_tokens=True)
        assert re.fullmatch("[0-9]{0,2}", after)
        if reader.finish[handle, 0] == Finish.STOP:
            assert re.fullmatch("[0-9]{2}", after)
            assert ids[-1] in ENDS
    assert begun >= 6


@pytest.mark.parametrize("speculation", ["none", "eagle gumbel"])
def test_a_choice_whose_own_masks_leave_no_token_ends_as_empty(speculation: str) -> None:
    """The grammar wants a letter after two digits, and the request allows only digits."""
    digits = tuple(TOKENIZER.encode(digit)[0] for digit in "0123456789")
    reader = Reader(engine := make(speculation=SPECULATIONS[speculation]))
    reader.run(
        request(0, of_regex("[0-9]{2}[a-z]"), allowed_token_ids=digits, seed=1),
        request(1, of_schema("list"), seed=1),
    )
    assert reader.finish[0, 0] == Finish.EMPTY
    assert re.fullmatch("[0-9]{2}", reader.text(0))
    assert check_json(reader, 1, SCHEMAS["list"]) == 1
    assert (engine.stats().empty_rows, engine.stats().nan_rows) == (1, 0)


@pytest.mark.parametrize("speculation", ["none", "eagle gumbel"])
def test_processed_and_kept_are_the_model_s_own_logprob(speculation: str) -> None:
    """At T 1 without penalties; both modes draw the same tokens. The bound is that of float32: the
    logits of 8192 tokens are below 40 in size, their sums off by some 1e-6."""
    asked: dict[str, Any] = {"seed": 6, "max_tokens": 20, "top_p": 0.8, "emit_interval": 7}
    both = asked | {"logprobs": 0}
    with_logprobs = request(
        1, of_schema("flat"), logprobs_mode="processed_logprobs", kept_logprob=True, **both
    )
    without = request(2, of_schema("flat"), kept_logprob=True, **asked)
    reader = Reader(make(speculation=SPECULATIONS[speculation]))
    reader.run(
        request(0, of_schema("flat"), logprobs_mode="raw_logprobs", **both),
        with_logprobs,
        without,
        request(3, None, kept_logprob=True, seed=1, max_tokens=5),
    )
    assert reader.tokens[0, 0] == reader.tokens[1, 0] == reader.tokens[2, 0]
    raw, processed, alone, free = (LogprobArrays.concat(reader.logprobs[h, 0]) for h in range(4))
    assert len(raw.chosen) == len(reader.tokens[0, 0])
    assert (processed.kept <= 0).all()
    assert processed.kept.min() < -1, "the grammar cut something"
    np.testing.assert_allclose(processed.chosen + processed.kept, raw.chosen, atol=1e-4)
    np.testing.assert_allclose(alone.kept, processed.kept, atol=1e-4)
    # In engines of their own their steps have as many rows, and so the same float32 sums.
    kept = []
    for each in (with_logprobs, without):
        lone = Reader(make(speculation=SPECULATIONS[speculation]))
        lone.run(each)
        kept.append(LogprobArrays.concat(lone.logprobs[each.handle, 0]).kept)
    np.testing.assert_array_equal(kept[0], kept[1])
    np.testing.assert_array_equal(free.kept, np.zeros(5, dtype=np.float32))
    assert not raw.kept.any(), "it did not ask"


@pytest.mark.parametrize("speculation", ["none", "ngram", "eagle gumbel"])
def test_ids_that_the_grammar_forbids_are_reported(speculation: str) -> None:
    """Processed they are -inf; raw they have the values that a request without grammar shows."""
    inside, outside = (TOKENIZER.encode(text)[0] for text in ("7", "x"))
    asked: dict[str, Any] = {"max_tokens": 4, "logprob_token_ids": (inside, outside), "seed": 2}
    reader = Reader(make(speculation=SPECULATIONS[speculation]))
    reader.run(
        request(0, of_regex("[0-9]{4}"), logprobs_mode="processed_logprobs", **asked),
        request(1, of_regex("[0-9]{4}"), logprobs_mode="raw_logprobs", **asked),
    )
    processed, raw = (LogprobArrays.concat(reader.logprobs[h, 0]).explicit for h in range(2))
    digits = reader.tokens[0, 0]
    assert reader.tokens[1, 0] == digits
    assert len(processed) == len(raw) == len(digits) > 1
    assert np.isfinite(processed[0, 0])
    assert (processed[:, 1] == -np.inf).all()
    assert np.isfinite(raw).all()
    # The same tokens again, as a prompt: what is raw knows no grammar.
    free = Reader(make())
    for i in range(len(digits)):
        own = asked | {"max_tokens": 1, "logprobs_mode": "raw_logprobs"}
        free.run(request(i, None, TOKENIZER.encode(PROMPTS[0]) + digits[:i], **own))
    values = np.concatenate([free.logprobs[i, 0][0].explicit for i in range(len(digits))])
    np.testing.assert_allclose(raw, values, atol=1e-4)
