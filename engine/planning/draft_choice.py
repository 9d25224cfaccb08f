"""Chooses how many drafts pay, from measured acceptance and measured times of steps. No torch.

With k drafts a row gets on average E(k) = 1 + S(1) + ... + S(k) tokens of a step, where S(j) is the
probability that its first j drafts are all accepted. A step of R rows with k drafts takes c(k, R)
seconds, measured when the server starts. The k with the most tokens a second, E(k) / c(k, R), is
chosen, 0 with E = 1 among them, so that no k is ever chosen that the measurements say is slower
than none.

S is a product of rates: S(j) = a(1) ... a(j), where a(j) is the share of those steps in which draft
j was accepted among those in which all before it did. While few drafts are made nothing is seen of
the later rates, but they are multiplied by the first ones, which are: S falls where acceptance
falls, and no memory of better times remains. A rate of which little was seen is taken for the one
before it.

Later rates, and with no drafts all of them, are found anew by probes: steps with all k drafts that
verify `LEAST_VERIFIED` rows. A probe is due once what it loses is `PROBE_SHARE` of the time since
the last; so probes cost no more than that share whatever the load, and come often where they are
cheap.
"""

from __future__ import annotations

import math

import numpy as np

from engine.arrays import Float64Array, Int32Array
from engine.contracts.runner import StepCosts

WINDOW = 512
"""Rows' steps after which what was accepted before counts for 1 / e."""
LEAST_VERIFIED = 32
"""Rows' steps that must be verified before anything follows from them."""
PROBE_SHARE = 0.004
"""Of the time that probes may lose."""
MARGIN = 0.005
"""How much better another number must be before it is taken, as a share of the time."""
PRIOR = 4.0
"""Rows' steps that the rate before counts for in a rate of which little was seen."""


class DraftChoice:
    """Follows what is accepted, and says how many drafts rows that decode should have."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._counts = sorted(costs.seconds)
        self._most = self._counts[-1]
        self._reached: Float64Array = np.zeros(self._most)
        self._stood: Float64Array = np.zeros(self._most)
        self._allowance = 0.0  # seconds that a probe may lose
        self._current = self._most

    def best(self, num_rows: int) -> int:
        """The number of drafts for steps of so many rows."""
        if self._reached[0] < LEAST_VERIFIED:
            return self._most
        tokens = self.tokens()
        speeds = {k: tokens[k] / self._costs.of(k, num_rows) for k in self._counts}
        best = max(self._counts, key=lambda k: speeds[k])
        is_better = speeds[best] > speeds[self._current] * (1.0 + MARGIN)
        return best if is_better else self._current

    def tokens(self) -> Float64Array:
        """The mean tokens that a row gets of a step with 0, 1, ... drafts."""
        all_accepted, before = np.ones(self._most + 1), 0.0
        for j in range(self._most):
            weight = PRIOR if j else 0.0
            rate = self._stood[j] + weight * before
            before = rate / max(self._reached[j] + weight, 1.0)
            all_accepted[j + 1] = all_accepted[j] * before
        tokens: Float64Array = all_accepted.cumsum()
        return tokens

    def learn(self, num_rows: int, num_drafts: int, accepted: Int32Array | None) -> None:
        """Note a step that was read back.

        Args:
            num_rows: rows that drew.
            num_drafts: that rows brought; those without drafts of their own wait for the others.
            accepted: int32 [num_rows], drafts that are accepted; None without drafts.
        """
        if num_drafts and accepted is not None:
            seen = slice(num_drafts)
            kept = math.exp(-num_rows / WINDOW)
            depths = np.arange(num_drafts)
            reached = (accepted[:, None] >= depths).sum(axis=0)
            self._reached[seen] = kept * self._reached[seen] + reached
            self._stood[seen] = kept * self._stood[seen] + np.append(
                reached[1:], np.count_nonzero(accepted >= num_drafts)
            )
        self._plan_probe(num_rows, num_drafts)
        self._current = self.best(num_rows)

    def _plan_probe(self, num_rows: int, num_drafts: int) -> None:
        """Forget the rates, which makes a probe of the next steps, where one is due."""
        if num_drafts == self._most or self._reached[0] < LEAST_VERIFIED:
            return
        own, most = (self._costs.of(k, num_rows) for k in (num_drafts, self._most))
        self._allowance += PROBE_SHARE * own
        if self._allowance < -(-LEAST_VERIFIED // num_rows) * (most - own):
            return
        self._allowance = 0.0
        self._reached[:] = self._stood[:] = 0.0
