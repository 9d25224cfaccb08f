from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.runner.host_threads import FEW_TOKENS, threads_for


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("num_tokens", "count"), [(1, 1), (FEW_TOKENS - 1, 1), (FEW_TOKENS, 4)])
def test_few_tokens_are_computed_by_one_thread(num_tokens: int, count: int) -> None:
    with threads_for(num_tokens):
        assert torch.get_num_threads() == count
    assert torch.get_num_threads() == 4


def test_a_step_that_fails_leaves_the_threads_as_they_were() -> None:
    with pytest.raises(RuntimeError, match="inside"), threads_for(1):
        raise RuntimeError("inside")
    assert torch.get_num_threads() == 4
