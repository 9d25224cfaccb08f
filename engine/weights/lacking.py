"""Which rows of weights that were let go no update has written since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized

from engine.contracts.named_weights import NamedWeights


class LackingWeights(Sized):
    """The weights that lack any of their rows: a trainer may send joined ones in parts.

    Args:
        named: weights that were let go, all of each but for what can only be written as it is: that
            is held on the host.
    """

    def __init__(self, named: NamedWeights) -> None:
        self._rows = {
            name: [range(weight.shape[0] if weight.shape else 1)]
            for name, weight in named.items()
            if weight.own_name not in weight.unit.fixed
        }

    def __len__(self) -> int:
        return len(self._rows)

    def note_written(self, written: Mapping[str, Sequence[slice | None]]) -> None:
        """Note what an update wrote, as `WeightUpdate.written` has it."""
        for name in self._rows.keys() & written.keys():
            for rows in written[name]:
                self._rows[name] = [] if rows is None else list(_outside(self._rows[name], rows))
            if not self._rows[name]:
                del self._rows[name]


def _outside(ranges: Sequence[range], rows: slice) -> Iterator[range]:
    """What is left of ranges without some rows."""
    for each in ranges:
        before = range(each.start, min(each.stop, rows.start))
        after = range(max(each.start, rows.stop), each.stop)
        yield from (left for left in (before, after) if left)
