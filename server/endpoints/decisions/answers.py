"""What labels' logprobs say of questions: probabilities, confidence, and how far to trust them.

With l the logprobs of the L labels of a prompt, an option's probability there is softmax(l), summed
in float64. Over several orders of the options it is the mean of the orders' probabilities. With a
prior l0, the logprobs of the same labels without a state, it is softmax(l - l0) in each order.

Confidence says how concentrated the probabilities p of n options are, not how often they are right:
(n max p - 1) / (n - 1) for a choice; for a score, 1 - E|i - m| / mean|i - (n - 1) / 2| with m the
likeliest level, and 0 where that is less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.request import ItemScores
from server.endpoints.decisions.spec import DecisionPrompts, Read
from server.scoring.labels import Float64Array


@dataclass(frozen=True, slots=True)
class LabelReadings:
    """What was read after one prompt.

    Attributes:
        logprobs: float64 [n], of each option's label, in the request's order of options.
        others: the logprob of all that begins with no label.
        first: the logprob of the best first token of a label.
        best_id, best: the best first token that begins no label, and its logprob.
    """

    logprobs: Float64Array
    others: float
    first: float
    best_id: int
    best: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question of n options.

    Attributes:
        probabilities: float64 [n].
        by_order: float64 [orders, n], those of each order of the options.
        reads: the prompt of each order in which the options were shown.
        readings: what was read after each of them.
    """

    probabilities: Float64Array
    by_order: Float64Array
    reads: list[Read]
    readings: list[LabelReadings]

    @property
    def best(self) -> int:
        """The likeliest option, the first of equals."""
        return int(self.probabilities.argmax())

    @property
    def label_mass(self) -> float:
        """The probability that a reply begins with a label, the mean over the orders."""
        masses = [np.exp(np.logaddexp.reduce(each.logprobs)) for each in self.readings]
        return min(float(np.mean(masses)), 1.0)

    @property
    def argmax_is_label(self) -> bool:
        """Whether in every order the likeliest token begins a label."""
        return all(each.first >= each.best for each in self.readings)

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
        return float((n * self.probabilities.max() - 1) / (n - 1))

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
    readings = label_readings(prompts, scores)
    without = None if prior is None else label_readings(*prior)
    by_question: list[list[int]] = [[] for _ in range(num_questions)]
    for item, read in enumerate(prompts.reads):
        by_question[read.question].append(item)
    found = []
    for items in by_question:
        logprobs = np.stack([readings[item].logprobs for item in items])
        if without is not None:
            logprobs = logprobs - _finite(np.stack([without[item].logprobs for item in items]))
        by_order = softmax(logprobs)
        mean = by_order.mean(axis=0)
        found.append(
            Answer(
                probabilities=mean / mean.sum(),
                by_order=by_order,
                reads=[prompts.reads[item] for item in items],
                readings=[readings[item] for item in items],
            )
        )
    return found


def label_readings(prompts: DecisionPrompts, scores: ItemScores) -> list[LabelReadings]:
    """What was read after each prompt, labels in the request's order of options."""
    found: dict[int, LabelReadings] = {}
    for group in prompts.spec.logprobs(scores):
        for row, item in enumerate(group.items.tolist()):
            logprobs = np.empty(group.labels.shape[1])
            logprobs[list(prompts.reads[item].options)] = group.labels[row]
            found[item] = LabelReadings(
                logprobs=logprobs,
                others=float(group.others[row]),
                first=float(group.first[row]),
                best_id=int(group.best_ids[row]),
                best=float(group.best[row]),
            )
    return [found[item] for item in range(len(prompts.reads))]


def softmax(logprobs: Float64Array) -> Float64Array:
    """Probabilities float64 [.., n] in proportion to exp(logprobs); equal where all are -inf."""
    best = logprobs.max(axis=-1, keepdims=True)
    weights = np.exp(logprobs - np.where(np.isneginf(best), 0.0, best))
    weights = np.where(np.isneginf(best), 1.0, weights)
    shared: Float64Array = weights / weights.sum(axis=-1, keepdims=True)
    return shared


def _finite(logprobs: Float64Array) -> Float64Array:
    """Logprobs by which others are divided; what cannot be drawn at all divides by the least."""
    least: Float64Array = np.maximum(logprobs, np.log(np.finfo(np.float64).tiny))
    return least
