"""Routes of a reply that has dropped tokens."""

from __future__ import annotations

import numpy as np
import pytest

from engine.messages.step_output import ChoiceRoutes
from server.generation.routes import Routes


@pytest.mark.parametrize(("num_tokens", "kept"), [(9, 5), (6, 3), (3, 0), (2, 0)])
def test_they_are_of_the_tokens_that_are_shown_but_the_last(num_tokens: int, kept: int) -> None:
    """Of tokens 2 to 6, whose routes the engine reported."""
    ids = np.arange(5, dtype=np.uint8).reshape(5, 1, 1)
    weights = ids.astype(np.float32)
    whole = ChoiceRoutes(handle=1, choice=0, start=2, ids=ids, weights=weights)
    routes = Routes.of(whole, num_tokens)
    assert routes.start == 2
    assert routes.ids.ravel().tolist() == list(range(kept))
    assert routes.weights is not None
    assert routes.weights.ravel().tolist() == list(range(kept))
