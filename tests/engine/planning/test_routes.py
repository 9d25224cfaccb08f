"""Which slots are read for the routes of choices that end, whatever a model wrote there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from engine.messages.request import RoutesParams
from engine.messages.step_output import ChoiceRoutes, Finish
from sampling.params import SamplingParams
from tests.engine.paged_fake import make_engine
from tests.engine.traffic import FRONTEND, Inbox, request, run, step

BLOCK = 4
PROMPT = list(range(1, 11))
WISH: dict[str, Any] = {"params": SamplingParams(), "max_tokens": 6}


def slots_of(routes: ChoiceRoutes) -> list[int]:
    """The slots that were read, which the fake gives back as experts of the first layer."""
    slots: list[int] = routes.ids[:, 0, 0].tolist()
    return slots


def test_slots_are_those_of_the_tokens_in_order() -> None:
    engine, runner = make_engine(block_size=BLOCK, num_blocks=40)
    inbox = Inbox()
    engine.submit(FRONTEND, request(1, PROMPT, routes=RoutesParams(), **WISH))
    run(engine, inbox)
    text = PROMPT + inbox.tokens[1, 0]
    slots = slots_of(inbox.routes[1, 0])
    assert len(set(slots)) == len(slots) == len(text) - 1
    blocks = {place // BLOCK: slot // BLOCK for place, slot in enumerate(slots)}
    assert [slot - blocks[place // BLOCK] * BLOCK for place, slot in enumerate(slots)] == [
        place % BLOCK for place in range(len(slots))
    ]
    assert len(set(blocks.values())) == len(blocks)
    neighbors = pairwise(slots)
    assert all((runner.keys[a], runner.keys[b]) in runner.links for a, b in neighbors)
    assert inbox.routes[1, 0].weights is None


def test_a_shared_prefix_is_read_where_it_lies() -> None:
    engine, _ = make_engine(block_size=BLOCK, num_blocks=40)
    inbox = Inbox()
    for handle in (1, 2):
        wish = WISH | {"n": handle, "routes": RoutesParams(has_weights=True)}
        engine.submit(FRONTEND, request(handle, PROMPT, **wish))
        run(engine, inbox)
    one, two, three = (slots_of(inbox.routes[key]) for key in ((1, 0), (2, 0), (2, 1)))
    assert inbox.cached[2] == 2 * BLOCK
    assert one[: 2 * BLOCK] == two[: 2 * BLOCK] == three[: 2 * BLOCK]
    assert not set(two[2 * BLOCK :]) & set(three[2 * BLOCK :])
    weights = inbox.routes[2, 0].weights
    assert weights is not None
    assert np.array_equal(weights, inbox.routes[2, 0].ids)


def test_what_ends_early_reports_what_was_computed_and_others_nothing() -> None:
    engine, _ = make_engine(block_size=BLOCK, num_blocks=40, max_rows=2, budget=4)
    inbox = Inbox()
    for handle in (1, 2, 3):
        routes = None if handle == 2 else RoutesParams(start=3)
        engine.submit(FRONTEND, request(handle, PROMPT, routes=routes, name="x", **WISH))
    step(engine, inbox, 3)
    engine.held.abort_named(None)
    run(engine, inbox)
    assert set(inbox.finish.values()) == {Finish.CANCELED}
    assert inbox.routes.keys() == {(1, 0)}, "the third had no row"
    drawn = len(inbox.tokens[1, 0])
    assert len(slots_of(inbox.routes[1, 0])) <= len(PROMPT) + drawn - 1 - 3
    assert inbox.routes[1, 0].start == 3
