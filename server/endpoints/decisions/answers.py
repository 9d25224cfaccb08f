"""What labels' logprobs say of questions: probabilities, confidence, and how far to trust them.

With l the logprobs of the L labels of a prompt, an option's probability there is softmax(l), summed
in float64. Over several orders of the options it is the mean of the orders' probabilities. With a
prior l0, the logprobs of the same labels without a state, it is softmax(l - l0) in each order.

Confidence says how concentrated the probabilities p of n options are, not how often they are right:
(n max p - 1) / (n - 1) for a choice; for a score, 1 - E|i - m| / mean|i - (n - 1) / 2| with m the
likeliest level, and 0 where that is less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.arrays import Float32Array, Int32Array, Int64Array
from engine.messages.step_output import ItemScores
from server.endpoints.decisions.spec import DecisionPrompts, Read
from server.scoring.labels import Float64Array


class LabelReadings(NamedTuple):
    """What was read after n prompts of L labels each.

    Attributes:
        logprobs: float64 [n, L], of each option's label, in the request's order of options.
        others: float64 [n], the logprob of all that begins with no label.
        first: float32 [n], the logprob of the best first token of a label.
        best_ids: int32 [n], the best first token that begins no label.
        best: float32 [n], its logprob.
    """

    logprobs: Float64Array
    others: Float64Array
    first: Float32Array
    best_ids: Int32Array
    best: Float32Array

    def at(self, rows: slice | Int64Array) -> LabelReadings:
        """Those of some of the prompts."""
        logprobs, others, first, best_ids, best = self
        return LabelReadings(logprobs[rows], others[rows], first[rows], best_ids[rows], best[rows])


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question of n options.

    Attributes:
        probabilities: float64 [n].
        by_order: float64 [orders, n], those of each order of the options.
        reads: the prompt of each order in which the options were shown.
        readings: what was read after each of them.
        label_mass: the probability that a reply begins with a label, the mean over the orders.
    """

    probabilities: Float64Array
    by_order: Float64Array
    reads: list[Read]
    readings: LabelReadings
    label_mass: float

    @property
    def best(self) -> int:
        """The likeliest option, the first of equals."""
        return int(self.probabilities.argmax())

    @property
    def argmax_is_label(self) -> bool:
        """Whether in every order the likeliest token begins a label."""
        return bool((self.readings.first >= self.readings.best).all())

    @property
    def argmax_is_stable(self) -> bool:
        """Whether the likeliest option is the same in every order."""
        return len(set(self.by_order.argmax(axis=1).tolist())) == 1

    @property
    def spread(self) -> float:
        """The most that an option's probability differs between two orders."""
        return float(np.ptp(self.by_order, axis=0).max())

    @property
    def expected(self) -> float:
        """The expected index of the options."""
        return float(self.probabilities @ np.arange(len(self.probabilities)))

    @property
    def choice_confidence(self) -> float:
        """How far the likeliest option stands out."""
        n = len(self.probabilities)
        return (n * float(self.probabilities.max()) - 1) / (n - 1)

    @property
    def score_confidence(self) -> float:
        """How near the levels are to the likeliest one."""
        n = len(self.probabilities)
        levels = np.arange(n)
        distance = self.probabilities @ np.abs(levels - self.best)
        return float(max(0.0, 1 - distance / np.abs(levels - (n - 1) / 2).mean()))


def answers(
    num_questions: int,
    prompts: DecisionPrompts,
    scores: ItemScores,
    prior: tuple[DecisionPrompts, ItemScores] | None = None,
) -> list[Answer]:
    """The answer to each question.

    Args:
        prior: the same questions without a state, if they were asked.
    """
    found: dict[int, Answer] = {}
    priors = {} if prior is None else dict(_readings(*prior))
    for size, (items, readings) in _readings(prompts, scores):
        logprobs = readings.logprobs
        if priors:
            logprobs = logprobs - _finite(priors[size][1].logprobs)
        by_order = softmax(logprobs)
        masses = np.exp(np.logaddexp.reduce(readings.logprobs, axis=1))
        reads = [prompts.reads[item] for item in items.tolist()]
        # The prompts of a question, one for each order of its options, follow one another.
        starts = [
            row
            for row, read in enumerate(reads)
            if read.question != reads[row - 1].question or not row
        ]
        ends = [*starts[1:], len(reads)]
        mean = by_order
        if len(starts) < len(reads):  # else each question was shown in one order
            counts = np.subtract(ends, starts)
            mean = np.add.reduceat(by_order, starts) / counts[:, None]
            masses = np.add.reduceat(masses, starts) / counts
        mean = mean / mean.sum(axis=1, keepdims=True)
        mass = np.minimum(masses, 1.0).tolist()
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            found[reads[start].question] = Answer(
                probabilities=mean[row],
                by_order=by_order[start:end],
                reads=reads[start:end],
                readings=readings.at(slice(start, end)),
                label_mass=mass[row],
            )
    return [found[question] for question in range(num_questions)]


def _readings(
    prompts: DecisionPrompts, scores: ItemScores
) -> Iterator[tuple[int, tuple[Int64Array, LabelReadings]]]:
    """What was read after the prompts of as many labels, for each such number of labels.

    Yields:
        The number, the prompts in order, int64 [n], and what was read after each.
    """
    groups: dict[int, list[tuple[Int64Array, LabelReadings]]] = {}
    for group in prompts.spec.logprobs(scores):
        size = group.labels.shape[1]
        shown = np.array([prompts.reads[item].options for item in group.items.tolist()])
        logprobs = np.empty_like(group.labels)
        logprobs[np.arange(len(shown))[:, None], shown] = group.labels
        readings = LabelReadings(logprobs, group.others, group.first, group.best_ids, group.best)
        groups.setdefault(size, []).append((group.items, readings))
    for size, parts in groups.items():
        if len(parts) == 1:
            yield size, parts[0]
            continue
        items = np.concatenate([part for part, _ in parts])
        columns = zip(*(readings for _, readings in parts), strict=True)
        joined = LabelReadings(*map(np.concatenate, columns))
        order = np.argsort(items)
        yield size, (items[order], joined.at(order))


def softmax(logprobs: Float64Array) -> Float64Array:
    """Probabilities float64 [.., n] in proportion to exp(logprobs); equal where all are -inf."""
    best = logprobs.max(axis=-1, keepdims=True)
    if (is_none := np.isneginf(best)).any():
        weights = np.where(is_none, 1.0, np.exp(logprobs - np.where(is_none, 0.0, best)))
    else:
        weights = np.exp(logprobs - best)
    shared: Float64Array = weights / weights.sum(axis=-1, keepdims=True)
    return shared


def _finite(logprobs: Float64Array) -> Float64Array:
    """Logprobs by which others are divided; what cannot be drawn at all divides by the least."""
    least: Float64Array = np.maximum(logprobs, np.log(np.finfo(np.float64).tiny))
    return least
