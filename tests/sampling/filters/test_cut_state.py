"""The states of a row's cut: kernels tell them apart by parity and by size."""

from __future__ import annotations

from sampling.filters.cut_state import CutState


def test_kernels_can_tell_the_states_apart() -> None:
    """`is_second` looks at the parity, `has_missed` and what adds AGAIN at the size."""
    undecided = set(CutState) - {CutState.DECIDED}
    assert int(CutState.DECIDED) == 0
    assert {state for state in undecided if state % 2 == 0} == {
        CutState.SECOND,
        CutState.SECOND_AGAIN,
    }
    again = CutState.FIRST_AGAIN - CutState.FIRST
    assert CutState.SECOND + again == CutState.SECOND_AGAIN
    assert {state for state in undecided if state > again} == {
        CutState.FIRST_AGAIN,
        CutState.SECOND_AGAIN,
    }
