"""Reports which experts the tokens of a choice took, when it ends. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.arrays import Int64Array
from engine.contracts.runner import Runner
from engine.messages.step_output import ChoiceRoutes
from engine.rows import RowTable

Report = Callable[[bytes, ChoiceRoutes], None]


class RouteReports:
    """Reads the routes of rows whose choices asked for them.

    Args:
        report: called with the frontend of each choice, and its routes.
    """

    def __init__(self, runner: Runner, table: RowTable, block_size: int, report: Report) -> None:
        self._runner, self._table = runner, table
        self._block_size, self._report = block_size, report

    def read(self, rows: Sequence[int]) -> None:
        """Report the routes of rows that are about to be vacated, all in one copy.

        It waits for the step in flight; rows that nobody asks about cost nothing.
        """
        asked = [row for row in rows if self._table.choice(row).request.routes is not None]
        if not asked:
            return
        slots = [self._slots(row) for row in asked]
        routes = self._runner.read_routes(np.concatenate(slots))
        ends = np.cumsum([len(each) for each in slots]).tolist()
        for row, count, end in zip(asked, map(len, slots), ends, strict=True):
            choice, own = self._table.choice(row), slice(end - count, end)
            wanted = choice.request.routes
            assert wanted is not None
            reported = ChoiceRoutes(
                handle=choice.request.handle,
                choice=choice.index,
                start=wanted.start,
                ids=routes.ids[own],
                weights=routes.weights[own] if wanted.has_weights else None,
            )
            self._report(choice.frontend, reported)

    def _slots(self, row: int) -> Int64Array:
        """The slots of a row's tokens from the first that is wanted: those that were computed.

        The last token that was drawn is not.
        """
        table, size = self._table, self._block_size
        wanted = table.choice(row).request.routes
        assert wanted is not None
        end = int(min(table.num_settled[row], table.num_known[row] - 1))
        places = np.arange(min(wanted.start, end), end)
        blocks = np.array(table.blocks[row], dtype=np.int64)
        return blocks[places // size] * size + places % size
