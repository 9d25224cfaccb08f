"""n-gram drafts, against cases by hand and a search by definition."""

from __future__ import annotations

import pytest
import torch

from engine.speculation.ngram import ngram_drafts

CASES = [
    # history, min_n, max_n, drafts of 3
    ([1, 2, 3, 9, 1, 2, 3], 2, 3, [9, 1, 2]),
    ([1, 2, 3, 9, 1, 2, 3], 4, 4, [-1, -1, -1]),
    ([5, 1, 2, 7, 8, 6, 1, 2, 4, 4, 1, 2], 1, 3, [4, 4, 1]),  # equally long: the latest
    ([5, 1, 2, 7, 8, 6, 1, 2, 4, 5, 1, 2], 1, 3, [7, 8, 6]),  # longer: the first
    ([7, 7, 7, 7], 1, 2, [7, 7, 7]),
    ([1, 2, 1, 2], 2, 2, [1, 2, 1]),  # what followed is short: it goes on
    ([3], 1, 2, [-1, -1, -1]),
    ([3, 3], 1, 1, [3, 3, 3]),
    ([3, 3], 2, 2, [-1, -1, -1]),
    ([1, 2, 3, 4], 1, 4, [-1, -1, -1]),
]


def by_definition(tokens: list[int], min_n: int, max_n: int, count: int) -> list[int]:
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                following = list(tokens)
                for j in range(count):
                    following.append(following[start + n + j])
                return following[len(tokens) :]
    return [-1] * count


@pytest.mark.parametrize(("tokens", "min_n", "max_n", "expected"), CASES)
def test_cases(tokens: list[int], min_n: int, max_n: int, expected: list[int]) -> None:
    history = torch.full((2, 20), 9, dtype=torch.int32)  # what comes after must not matter
    history[1, : len(tokens)] = torch.tensor(tokens)
    rows, lengths = torch.tensor([1], dtype=torch.int32), torch.tensor([len(tokens)])
    assert ngram_drafts(history, rows, lengths, 3, min_n, max_n).tolist() == [expected]
    assert by_definition(tokens, min_n, max_n, 3) == expected


def test_many_rows_against_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(4, (33, 60), generator=generator, dtype=torch.int32)
    rows = torch.randperm(33, generator=generator)[:20].to(torch.int32)
    lengths = torch.randint(1, 61, (20,), generator=generator)
    drafts = ngram_drafts(history, rows, lengths, 5, 2, 4)
    for row, length, found in zip(rows.tolist(), lengths.tolist(), drafts.tolist(), strict=True):
        assert found == by_definition(history[row, :length].tolist(), 2, 4, 5)
