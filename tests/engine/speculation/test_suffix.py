"""Suffix drafts, against cases by hand and a search by definition."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from engine.memory.recent_outputs import RecentOutputs
from engine.speculation import suffix
from engine.speculation.suffix import suffix_drafts
from engine.speculative_config import SuffixRules
from sampling.device.mirror import publish

WIDE = SuffixRules(depth=8, factor=4.0, least=0.1)
CASES = [
    # history, rules, drafts of 4
    ([1, 2, 3, 9, 1, 2, 3], WIDE, [9, 1, 2, 3]),
    ([1, 2, 3, 9, 1, 2, 3], SuffixRules(8, 1.0, 0.1), [9, 1, 2, -1]),  # a draft for each match
    ([1, 2, 3, 9, 1, 2, 3], SuffixRules(2, 1.0, 0.1), [9, 1, -1, -1]),
    ([1, 2, 3, 4], WIDE, [-1, -1, -1, -1]),
    ([3], WIDE, [-1, -1, -1, -1]),
    ([7, 7, 7, 7], WIDE, [7, 7, 7, 7]),
    ([1, 2, 1, 2], WIDE, [1, 2, 1, 2]),  # what followed is short: it goes on
    # Two of three places were followed by 5; a share of 2 / 3 is above one half.
    ([8, 1, 5, 6, 1, 5, 7, 1, 4, 9, 1], SuffixRules(8, 4.0, 0.5), [5, -1, -1, -1]),
    # The longest match alone proposes 4; the shorter ones with their vote for 5 score less.
    ([8, 1, 5, 6, 1, 5, 9, 1, 4, 3, 9, 1], SuffixRules(8, 1.0, 0.1), [4, 3, -1, -1]),
]


def by_definition(tokens: list[int], rules: SuffixRules, count: int) -> list[int]:
    """The drafts by a search for every length of match, with counts of whole paths."""
    best: tuple[np.float32, int, list[int]] = (np.float32(0), 0, [])
    for length in range(1, min(rules.depth, len(tokens) - 1) + 1):
        end = tokens[len(tokens) - length :]
        starts = [s for s in range(len(tokens) - length) if tokens[s : s + length] == end]
        following = []
        for start in reversed(starts):
            text = list(tokens)
            for j in range(count):
                text.append(text[start + length + j])
            following.append(text[len(tokens) :])
        path: list[int] = []
        probability, score = np.float32(1), np.float32(0)
        while following and len(path) < min(count, int(length * rules.factor)):
            votes = Counter(text[len(path)] for text in following)
            most = max(votes.values())
            token = next(t[len(path)] for t in following if votes[t[len(path)]] == most)
            probability *= np.float32(most) / np.float32(len(following))
            if probability < np.float32(rules.least):
                break
            following = [text for text in following if text[len(path)] == token]
            path.append(token)
            score += probability
        if path and score >= best[0]:
            best = (score, length, path)
    return best[2] + [-1] * (count - len(best[2]))


@pytest.mark.parametrize(("tokens", "rules", "expected"), CASES)
def test_cases(tokens: list[int], rules: SuffixRules, expected: list[int]) -> None:
    history = torch.full((2, 20), 9, dtype=torch.int32)  # what comes after must not matter
    history[1, : len(tokens)] = torch.tensor(tokens)
    rows, lengths = torch.tensor([1], dtype=torch.int32), torch.tensor([len(tokens)])
    assert suffix_drafts(history, rows, lengths, 4, rules).tolist() == [expected]
    assert by_definition(tokens, rules, 4) == expected


@pytest.mark.parametrize("rules", [WIDE, SuffixRules(3, 1.0, 0.3), SuffixRules(5, 1.5, 0.0)])
def test_many_rows_against_the_definition(rules: SuffixRules) -> None:
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(4, (33, 60), generator=generator, dtype=torch.int32)
    rows = torch.randperm(33, generator=generator)[:20].to(torch.int32)
    lengths = torch.randint(1, 61, (20,), generator=generator)
    drafts = suffix_drafts(history, rows, lengths, 5, rules)
    for row, length, found in zip(rows.tolist(), lengths.tolist(), drafts.tolist(), strict=True):
        assert found == by_definition(history[row, :length].tolist(), rules, 5)


def test_of_many_places_the_latest_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    history = torch.tensor([[1, 5, 1, 5, 1, 5, 1, 6, 1, 6, 1]], dtype=torch.int32)
    rows, lengths = torch.zeros(1, dtype=torch.int32), torch.tensor([11])
    rules = SuffixRules(1, 1.0, 0.1)
    assert suffix_drafts(history, rows, lengths, 1, rules).tolist() == [[5]]
    monkeypatch.setattr(suffix, "PLACES", 3)
    assert suffix_drafts(history, rows, lengths, 1, rules).tolist() == [[6]]


def test_outputs_of_others_are_followed_by_rows_that_may() -> None:
    recent = RecentOutputs(8, 4, torch.device("cpu"), 32)
    outputs = [np.array(text, dtype=np.int32) for text in ([4, 5, 6, 7, 8], [1, 5, 6, 9])]
    publish(recent.take(outputs, []))
    recent.readers[:2] = 1
    history = torch.tensor([[1, 5, 6, 0], [4, 5, 6, 0]], dtype=torch.int32).repeat(2, 1)
    rows, lengths = torch.arange(4, dtype=torch.int32), torch.full((4,), 3)
    drafts = suffix_drafts(history, rows, lengths, 3, WIDE, recent)
    assert drafts.tolist() == [[9, -1, -1], [7, 8, -1], [-1, -1, -1], [-1, -1, -1]]
