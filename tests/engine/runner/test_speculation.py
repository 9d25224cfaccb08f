"""Speculation through the whole engine: what it may not change, token for token, in float32."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from engine.messages.step_output import Finish
from engine.speculative_config import RejectionSampleMethod, SpeculativeConfig
from sampling.params import SamplingParams
from tests.engine.runner.drafting_engines import (
    EVERYTHING,
    GREEDY,
    REPORTS,
    Tokens,
    assert_alike,
    config,
    learn,
    make,
    requests,
    run,
    tokens_of,
)
from tests.engine.runner.table_drafter import draft_from
from tests.engine.tiny_models import VOCAB

FEW = SamplingParams(seed=7, allowed_token_ids=(3, 14, 20, 31))
"""So few that tokens recur at a temperature of 1."""


@pytest.mark.parametrize("sample_method", ["greedy", "gumbel"])
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [22, 200])
def test_greedy_output_is_that_of_plain_decoding(
    folder: Path, table: torch.Tensor, num_blocks: int, prefix_caching: bool, sample_method: str
) -> None:
    asked = requests([GREEDY])
    plain = run(make(folder, None), asked)
    learn(table, plain)
    engine = make(folder, config(draft_sample_method=sample_method), num_blocks, prefix_caching)
    assert tokens_of(run(engine, asked)) == tokens_of(plain)
    assert (engine.stats().num_preemptions > 0) == (num_blocks == 22)
    stats = engine.stats().drafts
    assert stats is not None
    assert stats.num_draft_tokens / 4 < stats.num_accepted < stats.num_draft_tokens


@pytest.mark.parametrize("method", ["standard", "coupled"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("num_blocks", [22, 200])
def test_seeded_output_is_that_of_plain_decoding(
    folder: Path, table: torch.Tensor, k: int, num_blocks: int, method: RejectionSampleMethod
) -> None:
    """With greedy drafts, the default of standard, as with coupled ones."""
    asked = requests(EVERYTHING, n=2)
    plain = run(make(folder, None), asked)
    learn(table, plain)
    engine = make(folder, config(k, method), num_blocks)
    assert tokens_of(run(engine, asked)) == tokens_of(plain)
    stats = engine.stats().drafts
    assert stats is not None
    assert stats.num_draft_tokens / 10 < stats.num_accepted < stats.num_draft_tokens


def test_drafts_of_n_grams_change_no_token_of_a_seed(folder: Path) -> None:
    """Beside rows without seeds, whose load may stop drafts, as without speculation."""
    asked = requests([FEW, *EVERYTHING], n=2, max_tokens=60)
    plain = tokens_of(run(make(folder, None), asked))
    drafting = SpeculativeConfig(
        method="ngram", num_speculative_tokens=4, prompt_lookup_min=1, prompt_lookup_max=2
    )
    others = [
        msgspec.structs.replace(each, handle=100 + each.handle)
        for each in requests([SamplingParams()])
    ]
    for off_from in (None, 4):
        speculation = msgspec.structs.replace(drafting, disable_by_batch_size=off_from)
        engine = make(folder, speculation, num_blocks=400, max_rows=12)
        found = tokens_of(run(engine, [*others, *asked]))
        assert {key: found[key] for key in plain} == plain
        stats = engine.stats().drafts
        assert stats is not None
        assert 0 < stats.num_accepted < stats.num_draft_tokens


@pytest.mark.parametrize("sample_method", ["greedy", "gumbel"])
def test_seeded_tokens_depend_on_their_request_alone(
    folder: Path, table: torch.Tensor, sample_method: str
) -> None:
    """Chunks, neighbours, prefix cache, preemption and load leave a seeded row as it is."""
    asked = requests(EVERYTHING, n=2)
    plain = run(make(folder, None), asked)
    learn(table, plain)
    speculation = config(draft_sample_method=sample_method)
    alone: Tokens = {}
    for request in asked:
        alone |= tokens_of(run(make(folder, speculation, max_rows=2), [request]))
    assert (alone == tokens_of(plain)) == (sample_method == "greedy")
    loaded = msgspec.structs.replace(speculation, disable_by_batch_size=2)
    for engine in (
        make(folder, speculation, num_blocks=22),
        make(folder, speculation, max_step_tokens=7, prefix_caching=False),
        make(folder, loaded, max_rows=18, max_step_tokens=128),
    ):
        assert tokens_of(run(engine, asked, steps_between=1)) == alone


@pytest.mark.parametrize("method", ["standard", "coupled"])
def test_logprobs_are_those_of_plain_decoding(
    folder: Path, table: torch.Tensor, method: RejectionSampleMethod
) -> None:
    """Accepted, recovered and bonus tokens alike, in every mode, with penalties and filters."""
    params = [
        msgspec.structs.replace(EVERYTHING[i % len(EVERYTHING)], **report)
        for i, report in enumerate(REPORTS)
    ]
    asked = requests(params, emit_interval=5)
    plain = run(make(folder, None), asked)
    learn(table, plain)
    spoken = run(make(folder, config(4, method)), asked)
    assert_alike(spoken, plain, params)


def test_drafts_without_room_do_not_count_as_verified(folder: Path, table: torch.Tensor) -> None:
    """Of three tokens the prompt's step draws one, so the next has room for two drafts of four."""
    asked = requests([GREEDY], max_tokens=3)[:1]
    plain = run(make(folder, None), asked)
    [reply] = plain.values()
    table[reply.tokens[:-1], reply.tokens[1:]] += 100.0  # each draft is right
    engine = make(folder, config(4))
    assert tokens_of(run(engine, asked)) == tokens_of(plain)
    stats = engine.stats().drafts
    assert stats is not None
    assert (stats.num_draft_tokens, stats.num_accepted) == (2, 2)


def test_drafters_above_their_batch_size_do_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = draft_from(torch.randn((VOCAB, VOCAB)), monkeypatch)
    engine = make(folder, config(disable_by_batch_size=2))
    num_rehearsed = made[0].num_runs
    run(engine, requests([GREEDY], max_tokens=8), steps_between=0)
    assert made[0].num_runs - num_rehearsed < 8, "only while the last row is alone"
    stats = engine.stats().drafts
    assert stats is not None
    assert stats.num_accepted < 8


def test_a_bad_logit_behind_accepted_drafts_leaves_them(
    folder: Path, table: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.models.decoder import Decoder

    asked = requests([GREEDY])
    plain = run(make(folder, None), asked)
    learn(table, plain)
    bad = plain[3, 0].tokens[9]
    honest = Decoder.logits

    def logits(self: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        values = honest(self, hidden)
        top = values.argmax(dim=1)
        values[top == bad] = torch.nan
        return values

    monkeypatch.setattr(Decoder, "logits", logits)
    for speculation in (None, config()):
        replies = run(make(folder, speculation), asked)
        for key, reply in plain.items():
            until = reply.tokens.index(bad) if bad in reply.tokens else None
            assert replies[key].tokens == reply.tokens[:until]
            expected = reply.finish if until is None else Finish.NAN
            assert replies[key].finish == expected
