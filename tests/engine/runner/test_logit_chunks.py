from __future__ import annotations

import pytest

from engine.runner import logit_chunks


@pytest.mark.parametrize(
    ("start", "stop", "chunks"),
    [
        (0, 7, [(0, 3), (3, 6), (6, 7)]),
        (5, 11, [(5, 8), (8, 11)]),
        (5, 6, [(5, 6)]),
        (5, 5, []),
    ],
)
def test_chunks_are_bounded_and_leave_nothing_out(
    start: int, stop: int, chunks: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logit_chunks, "LOGITS_BYTES", 4 * 10 * 4 - 1)  # short of a fourth row
    found = logit_chunks.logit_chunks(start, stop, vocab_size=10)
    assert [(chunk.start, chunk.stop) for chunk in found] == chunks


def test_a_vocabulary_over_the_bound_goes_position_by_position() -> None:
    found = logit_chunks.logit_chunks(0, 2, vocab_size=logit_chunks.LOGITS_BYTES)
    assert list(found) == [slice(0, 1), slice(1, 2)]
