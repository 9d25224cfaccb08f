"""Dialogues as ids: replies to learn, after the prompts that the template makes of all before."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from demo.chat import prompt_of, reply_of
from demo.decisions.drawn import LEARNED_FAMILIES, decisions
from demo.dialogues import Dialogue, dialogues, without_thoughts
from demo.run import TrainingSettings

POOL_BATCHES, BATCHES_AHEAD = 8, 4
PAD_TO = 32
ALONE_ONE_IN, SILENT_ONE_IN, DECISION_ONE_IN = 3, 12, 3


@dataclass(frozen=True)
class LearnedDialogue:
    """Ids of a dialogue, and of each whether it belongs to a reply that is learned."""

    ids: list[int]
    learned: list[bool]


@dataclass(frozen=True)
class DialogueBatch:
    """Dialogues padded after their ends.

    Attributes:
        inputs: int64 [batch, length].
        places: of what predicts a reply's tokens in the flattened inputs, int64 [num_targets].
        targets: those tokens, int64 [num_targets].
        weights: what each of them counts in the loss, float32 [num_targets].
    """

    inputs: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> "DialogueBatch":
        """The batch on a device."""
        parts = (self.inputs, self.places, self.targets, self.weights)
        return DialogueBatch(*(part.to(device, non_blocking=True) for part in parts))


def learned_dialogue(
    tokenizer: Tokenizer, dialogue: Dialogue, places: list[int], *, thinks: bool = True
) -> LearnedDialogue:
    """A dialogue up to the last of the replies at `places` of its turns.

    Prompts show the thoughts of the other replies learned; those of replies before the first are
    left out, as they are where a client does not send them.

    Args:
        thinks: replies begin with thoughts; otherwise the prompt has closed them.
    """
    ids: list[int] = []
    learned: list[bool] = []
    messages = dialogue.history + without_thoughts(dialogue.turns[: places[0]])
    text = ""
    for place in range(places[0], places[-1] + 1):
        turn = dialogue.turns[place] if thinks else without_thoughts([dialogue.turns[place]])[0]
        if place in places:
            prompt = prompt_of(messages, dialogue.tools, thinks=thinks)
            reply = reply_of(messages, turn)
            for part, is_learned in ((prompt.removeprefix(text), False), (reply, True)):
                part_ids = tokenizer.encode(part).ids
                ids += part_ids
                learned += [is_learned] * len(part_ids)
            text = prompt + reply
        messages = [*messages, turn]
    return LearnedDialogue(ids, learned)


def learned_dialogues(
    tokenizer: Tokenizer, seed: int, max_tokens: int
) -> Iterator[LearnedDialogue]:
    """Endless dialogues to train on, all with at most so many tokens.

    One in three is a decision that is thought about.
    """
    draw = random.Random(seed)
    decided = decisions(seed, families=LEARNED_FAMILIES)
    for dialogue in dialogues(seed):
        thinks, places = draw.randrange(SILENT_ONE_IN) > 0, dialogue.replies
        if not thinks or draw.randrange(ALONE_ONE_IN) == 0:
            places = [draw.choice(places)]
        found = learned_dialogue(tokenizer, dialogue, places, thinks=thinks)
        if len(found.ids) <= max_tokens:
            yield found
        if draw.randrange(DECISION_ONE_IN - 1) == 0:
            yield learned_dialogue(tokenizer, next(decided).dialogue, [0])


def learned_decisions(tokenizer: Tokenizer, seed: int) -> Iterator[LearnedDialogue]:
    """Endless decisions to train on, whose replies are labels without thoughts."""
    for decision in decisions(seed, families=LEARNED_FAMILIES):
        yield learned_dialogue(tokenizer, decision.dialogue, [0], thinks=False)


def pools(
    found: Iterator[LearnedDialogue], seed: int, batch_size: int
) -> Iterator[list[LearnedDialogue]]:
    """Endless lists of `batch_size`, each of dialogues of like length."""
    draw = random.Random(seed)
    while True:
        pool = [next(found) for _ in range(POOL_BATCHES * batch_size)]
        pool.sort(key=lambda each: len(each.ids))
        starts = list(range(0, len(pool), batch_size))
        draw.shuffle(starts)
        for start in starts:
            yield pool[start : start + batch_size]


def dialogue_batches(
    tokenizer: Tokenizer, seed: int, settings: TrainingSettings, max_tokens: int
) -> Iterator[DialogueBatch]:
    """Endless batches of dialogues, then decisions; each kind's weight is shared by its tokens."""
    dialogues = learned_dialogues(tokenizer, seed, max_tokens)
    decisions = learned_decisions(tokenizer, seed)
    kinds = zip(
        pools(dialogues, seed, settings.num_dialogues),
        pools(decisions, seed, settings.num_decisions),
        strict=True,
    )
    weights = (settings.dialogue_weight, settings.decision_weight)
    for parts in kinds:
        yield padded(list(zip(parts, weights, strict=True)))


class _Drawn(IterableDataset[DialogueBatch]):
    """Batches that each worker draws with a seed of its own."""

    def __init__(self, draw: Callable[[int], Iterator[DialogueBatch]], seed: int) -> None:
        self._draw = draw
        self._seed = seed

    def __iter__(self) -> Iterator[DialogueBatch]:
        info = get_worker_info()
        return self._draw(self._seed if info is None else self._seed + info.id)


def drawn_ahead(
    draw: Callable[[int], Iterator[DialogueBatch]], seed: int, workers: int
) -> Iterator[DialogueBatch]:
    """The batches of `draw(seed)`, or of as many seeds as there are processes that draw them.

    Args:
        workers: processes that draw batches while others are learned; 0 for this one.
    """
    ahead = BATCHES_AHEAD if workers else None
    drawn = _Drawn(draw, seed)
    return iter(DataLoader(drawn, batch_size=None, num_workers=workers, prefetch_factor=ahead))


def padded(parts: Sequence[tuple[list[LearnedDialogue], float]]) -> DialogueBatch:
    """Dialogues of several kinds as one batch, whose length is a multiple of 32.

    Args:
        parts: dialogues, and the weight that the tokens learned of them have together.
    """
    batch = [each for kind, _ in parts for each in kind]
    longest = max(len(each.ids) for each in batch) - 1
    length = -(-longest // PAD_TO) * PAD_TO
    inputs = torch.zeros(len(batch), length, dtype=torch.long)
    for row, each in enumerate(batch):
        inputs[row, : len(each.ids) - 1] = torch.tensor(each.ids[:-1])
    places: list[int] = []
    targets: list[int] = []
    weights: list[torch.Tensor] = []
    row = 0
    for kind, weight in parts:
        before = len(targets)
        for each in kind:
            learned = [i for i, is_learned in enumerate(each.learned) if is_learned]
            places += [row * length + i - 1 for i in learned]
            targets += [each.ids[i] for i in learned]
            row += 1
        count = len(targets) - before
        weights.append(torch.full((count,), weight / max(count, 1)))
    return DialogueBatch(inputs, torch.tensor(places), torch.tensor(targets), torch.cat(weights))
