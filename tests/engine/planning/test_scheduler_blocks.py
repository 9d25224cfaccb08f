"""Plans of the scheduler where blocks are few: room for admission, and preemption."""

from __future__ import annotations

from typing import Literal

import pytest

from engine.messages.request import PromptLogprobsParams
from engine.planning.drafting import DraftRules
from engine.rows import Choice
from sampling.params import SamplingParams
from tests.engine.planning.scheduler_setup import Setup, counts
from tests.engine.traffic import FRONTEND, request


def test_a_choice_is_admitted_only_with_room_for_all_its_tokens() -> None:
    setup = Setup(num_blocks=7, budget=8)  # six blocks
    setup.enqueue(list(range(1, 13)))  # three, of which the first step takes two
    setup.enqueue(list(range(20, 33)))  # four
    assert counts(setup.step()) == {1: 8}
    assert setup.pool.num_free == 4
    assert setup.scheduler.num_promised() == 1
    assert counts(setup.step()) == {1: 4}, "one of the four free blocks is promised"


def test_a_block_that_a_waiting_row_needs_is_not_given_away() -> None:
    """A decoding row that does not fit into the step with its drafts keeps what it will need."""
    rules = DraftRules(num_tokens=4, max_rows=9)
    setup = Setup(num_blocks=8, budget=8, drafting=rules)  # seven blocks
    setup.enqueue([1])
    setup.enqueue([2, 3, 4])  # two blocks with the drafter's five positions, then three
    setup.step()
    setup.enqueue([5])  # two blocks
    assert counts(setup.plan()) == {1: 5}
    assert (setup.pool.num_free, setup.scheduler.num_promised()) == (2, 1)


def test_room_counts_down_within_one_step() -> None:
    setup = Setup(num_blocks=6)  # five blocks
    setup.enqueue(list(range(1, 8)))
    setup.enqueue(list(range(11, 16)))
    setup.enqueue(list(range(21, 26)))
    assert counts(setup.step()) == {1: 7, 2: 5}


def test_shared_blocks_that_nobody_holds_need_room_too() -> None:
    setup = Setup(num_blocks=6)  # five blocks
    setup.enqueue(list(range(1, 9)))
    setup.step()
    setup.scheduler.release(0)
    setup.enqueue(list(range(50, 60)))  # three of them: two are left, both computed
    setup.step()
    assert setup.pool.num_free == 2
    setup.enqueue([*range(1, 9), 9])  # two shared, and one more that is not there
    assert counts(setup.plan()) == {2: 1}


def test_blocks_are_granted_in_order_as_tokens_need_them() -> None:
    setup = Setup(budget=6)
    setup.enqueue(list(range(1, 11)))
    plans = [setup.step() for _ in range(5)]
    granted = [[(grant.row, grant.start, len(grant.blocks)) for grant in p.grants] for p in plans]
    row = int(plans[0].rows[0])
    # Tokens computed: 6, 10, 11, 12, 13, and the fourth block begins with token 13.
    assert granted == [[(row, 0, 2)], [(row, 2, 1)], [], [], [(row, 3, 1)]]


def test_no_block_is_granted_for_the_last_token() -> None:
    """It is drawn and never computed."""
    setup = Setup()
    setup.enqueue([1, 2], max_tokens=3)  # tokens 0 to 3 are computed, 4 is not
    for _ in range(3):
        setup.step()
    assert len(setup.table.blocks[0]) == 1
    assert setup.scheduler.plan() is None


def test_no_block_is_promised_for_the_last_token() -> None:
    setup = Setup()
    setup.enqueue([1, 2, 3, 4], max_tokens=1)
    setup.enqueue([5, 6, 7, 8], max_tokens=2)
    setup.plan()
    assert setup.scheduler.num_promised() == 1, "the fifth token of the second is computed"


@pytest.mark.parametrize(("max_tokens", "num_blocks"), [(20, 2), (3, 2), (2, 1)])
def test_blocks_cover_what_the_drafter_writes_ahead(max_tokens: int, num_blocks: int) -> None:
    """With three drafts it writes four positions past the prompt's three, but none at the end."""
    setup = Setup(drafting=DraftRules(num_tokens=3, max_rows=9))
    setup.enqueue([1, 2, 3], max_tokens=max_tokens)
    setup.plan()
    assert len(setup.table.blocks[0]) == num_blocks


def test_a_row_that_shares_blocks_the_drafter_lacks_has_a_gap() -> None:
    """Though the drafter runs in the very step that admits it, for another row."""
    rules = DraftRules(num_tokens=2, max_rows=1, has_cache=True, draws_differ=True)
    setup = Setup(drafting=rules)
    for prompt in ([1, 2, 3, 4, 5], [9]):
        setup.enqueue(prompt)
    assert not setup.step().runs_drafter, "two rows are running"
    sharer = setup.enqueue([1, 2, 3, 4, 5])
    seeded = setup.enqueue([7], params=SamplingParams(seed=1))
    plan = setup.plan()
    assert plan.runs_drafter
    assert counts(plan)[3] == 1, "four tokens are shared"
    assert plan.rows[plan.proposes].tolist() == [seeded.row]
    assert setup.table.has_gap[sharer.row]


def full_pool(policy: Literal["fcfs", "priority"] = "fcfs", **second: int) -> Setup:
    """Two choices of a block each and one vacant block; both need a block in the next step."""
    setup = Setup(num_blocks=4, policy=policy)
    setup.enqueue([1, 2, 3])
    setup.enqueue([5, 6, 7], **second)
    setup.step()
    setup.step()
    assert [len(setup.table.blocks[row]) for row in setup.table.running] == [1, 1]
    return setup


def test_the_latest_arrival_loses_its_row_and_comes_back_with_its_tokens() -> None:
    setup = full_pool()
    plan = setup.plan()
    assert counts(plan) == {1: 1}
    [lost] = setup.preempted
    assert plan.released == [lost]
    assert setup.scheduler.num_preemptions == 1
    setup.scheduler.release(setup.table.running[0])
    again = setup.plan()
    [admission] = again.admissions
    assert admission.choice.token_ids.tolist() == [5, 6, 7, 30, 30]
    assert admission.choice.prompt_len == 3
    assert len(again.released) == 1
    setup.read_back(again)
    assert setup.plan().released == [], "each row is released once"
    assert again.num_prompt_tokens == 0, "the prompt's three tokens lie in a block it kept"


def test_under_priority_the_lowest_rank_loses_its_row() -> None:
    setup = full_pool("priority", priority=-1)
    assert counts(setup.plan()) == {2: 1}
    assert [c.request.handle for c in setup.table.choices if c] == [2]


def test_a_row_preempts_itself_where_it_ranks_last() -> None:
    setup = Setup(num_blocks=3)
    setup.enqueue([1])
    setup.enqueue([5, 6, 7])
    setup.step()
    assert counts(setup.step()) == {1: 1, 2: 1}
    assert counts(setup.step()) == {1: 1}, "the second needs a block for its fifth token"
    assert [c.request.handle for c in setup.table.choices if c] == [1]


def test_a_preempted_choice_finds_what_it_generated() -> None:
    """Its hashes are those of all its tokens, not of the prompt alone."""
    setup = Setup(num_blocks=40)
    choice = setup.enqueue([1, 2, 3, 4, 5], max_tokens=40)
    for _ in range(9):
        setup.step()
    assert choice.row is not None
    assert int(setup.table.num_known[choice.row]) == 14
    setup.scheduler._preempt(choice.row)
    [admission] = setup.plan().admissions
    assert admission.num_computed == 12
    assert len(setup.table.blocks[admission.row]) == 4


def test_prompt_logprobs_begin_again_after_a_preemption() -> None:
    setup = Setup(budget=4)
    setup._num_arrivals = 1
    asked = request(1, list(range(1, 11)), prompt_logprobs=PromptLogprobsParams())
    choice = Choice(FRONTEND, asked, 0, 0, 1, asked.prompt_token_ids, prompt_parts=[])
    setup.scheduler.enqueue(choice)
    setup.step()
    choice.prompt_parts = [None, None]  # type: ignore[list-item]  # two parts were read back
    assert choice.row is not None
    setup.scheduler._preempt(choice.row)
    assert choice.prompt_parts == []


def test_what_a_preempted_row_was_granted_in_the_same_plan_is_not_announced() -> None:
    """A decoding row takes the last block, and a prompt of higher rank takes it away again."""
    setup = Setup(num_blocks=5, budget=5, policy="priority")
    setup.enqueue([1, 2], priority=1)
    setup.step()
    high = setup.enqueue(list(range(11, 23)))
    assert counts(setup.step()) == counts(setup.step()) == {1: 1, 2: 4}
    plan = setup.plan()
    assert counts(plan) == {2: 4}
    assert [(grant.row, grant.start) for grant in plan.grants] == [(high.row, 2)]
