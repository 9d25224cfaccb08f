"""Chooses whether drafting pays, from measured acceptance and measured times of steps. No torch."""

from __future__ import annotations

import math

from engine.contracts.runner import StepCosts

WINDOW = 512
"""Rows' steps after which what was accepted before counts for 1 / e."""
LEAST_VERIFIED = 32
"""Rows' steps that must be verified before anything follows from them."""
PROBE_STEPS = 4096
"""Steps without drafts after which acceptance is measured anew. A probe takes at most
`LEAST_VERIFIED` steps, so that it costs less than a hundredth of what drafting loses."""
MARGIN = 0.02
"""How much better the other manner must be before it is taken, as a share of the time."""


class DraftChoice:
    """Follows what is accepted, and says whether rows that decode should draft.

    A step with drafts pays where a row gets more tokens of it, on average, than it takes longer.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._verified = self._tokens = 0.0  # rows' steps, and the tokens they got
        self._num_plain = 0
        self._is_on = True

    def pays(self, num_rows: int) -> bool:
        """Whether steps of so many rows should draft."""
        if self._verified < LEAST_VERIFIED:
            return True
        margin = 1.0 - MARGIN if self._is_on else 1.0 + MARGIN
        return self._tokens / self._verified >= self._costs.ratio(num_rows) * margin

    def learn(self, num_rows: int, num_verified: int, num_accepted: int) -> None:
        """Note a step that was read back.

        Args:
            num_rows: rows that drew.
            num_verified: as many in a step that verified drafts, for which rows without drafts of
                their own wait too; else 0.
            num_accepted: drafts that were accepted.
        """
        if num_verified:
            kept = math.exp(-num_verified / WINDOW)
            self._verified = kept * self._verified + num_verified
            self._tokens = kept * self._tokens + num_verified + num_accepted
            self._num_plain = 0
        else:
            self._num_plain += 1
            if self._num_plain >= PROBE_STEPS:
                self._verified = self._tokens = 0.0
                self._num_plain = 0
        self._is_on = self.pays(num_rows)
