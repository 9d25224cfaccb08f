"""`PrefixRouter`: which replica gets a prompt, by where its first blocks went and by queues."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MAX_LEAD = 16
"""Requests that a replica may have more than the least loaded one and still get prompts whose
blocks it holds."""
MAX_HOLDERS = 16
"""Replicas that are remembered for a prefix, the latest of those it was sent to."""
MAX_PREFIXES = 1 << 18
"""Prefixes that are remembered at most, some 80 MB."""
_MASK = (1 << 64) - 1


class Route(NamedTuple):
    """Where a prompt goes.

    Attributes:
        replica: the name of the replica.
        num_known: how many of the prompt's first blocks were sent there before.
    """

    replica: str
    num_known: int


class PrefixRouter:
    """Sends a prompt where its first blocks are cached, unless that replica's queue is long.

    The longest of its prefixes that a replica with a short enough queue was sent before decides.
    Where there is none, the replica with the least requests gets it; among equals a hash of
    replica and first block decides, so that several routers that know nothing of each other agree.
    A decision depends on nothing but the calls so far.

    What a replica still holds is not asked: the router remembers as many prefixes as the caches of
    all replicas have room for, and forgets the one that was not used for the longest time.

    Args:
        max_lead: as `MAX_LEAD`.
        max_prefixes: prefixes remembered, at most `MAX_PREFIXES`.
    """

    def __init__(self, max_lead: int = MAX_LEAD, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_lead = max_lead
        self._max_prefixes = max_prefixes
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._marks: dict[str, int] = {}
        self._turn = 0

    @property
    def num_prefixes(self) -> int:
        """How many prefixes are remembered."""
        return len(self._holders)

    def resize(self, max_prefixes: int) -> None:
        """Remember so many prefixes from now on, at least one and at most `MAX_PREFIXES`."""
        self._max_prefixes = min(max(max_prefixes, 1), MAX_PREFIXES)
        self._shrink()

    def choose(self, hashes: Sequence[int], loads: Mapping[str, int]) -> Route:
        """Choose a replica for a prompt, and note that its blocks are there from now on.

        Args:
            hashes: `prefix_hashes` of the prompt.
            loads: requests at each replica that can get it, by its name; not empty.
        """
        least = min(loads.values())
        limit = least + self._max_lead
        route = self._known(hashes, loads, limit)
        if route is None:
            tied = [name for name, load in loads.items() if load == least]
            route = Route(self._break_tie(tied, hashes), 0)
        self._note(hashes, route.replica, loads)
        return route

    def _known(self, hashes: Sequence[int], loads: Mapping[str, int], limit: int) -> Route | None:
        """The route by the longest prefix that a replica below the limit was sent before."""
        for i in range(len(hashes) - 1, -1, -1):
            holders = [h for h in self._holders.get(hashes[i], ()) if loads.get(h, limit) < limit]
            if holders:
                return Route(min(holders, key=lambda name: loads[name]), i + 1)
        return None

    def _break_tie(self, names: list[str], hashes: Sequence[int]) -> str:
        """One of the names: by the prompt's first block, or in turn for one that has none."""
        if not hashes:
            self._turn += 1
            return names[self._turn % len(names)]
        first = hashes[0]
        return max(names, key=lambda name: _mix(self._mark(name) ^ first))

    def _mark(self, name: str) -> int:
        """A number of 64 bits that identifies a replica, the same in every process."""
        if (mark := self._marks.get(name)) is None:
            mark = int.from_bytes(name.encode(), "little") % (_MASK - 58)  # a prime
            self._marks[name] = mark
        return mark

    def _note(self, hashes: Sequence[int], replica: str, loads: Mapping[str, int]) -> None:
        """Remember that a replica has these prefixes, and forget replicas that are gone."""
        for each in reversed(hashes):  # the shortest last, since longer ones are of no use alone
            known = self._holders.get(each, ())
            if not known or known[-1] != replica:
                others: Iterable[str] = (h for h in known if h != replica and h in loads)
                self._holders[each] = (*others, replica)[-MAX_HOLDERS:]
            self._holders.move_to_end(each)
        self._shrink()
        if len(self._marks) > 2 * len(loads):
            self._marks = {name: mark for name, mark in self._marks.items() if name in loads}

    def _shrink(self) -> None:
        while len(self._holders) > self._max_prefixes:
            self._holders.popitem(last=False)


def _mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
