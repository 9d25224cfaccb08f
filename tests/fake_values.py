"""The values that the fake engine reports: logprobs and scores made of nothing but positions."""

from __future__ import annotations

import numpy as np

from engine.arrays import Float32Array, LogprobArrays
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish, ItemScores, PromptLogprobs

VOCAB_SIZE = 264
"""Ids 259 to 263 are the model's alone, as a padded vocabulary has them."""


def value_row(position: int) -> Float32Array:
    """float32 [VOCAB_SIZE]: the fake's values after `position` tokens; 263 is masked."""
    ids = np.arange(VOCAB_SIZE)
    row = -((ids * 37 + position * 11) % 97).astype(np.float32) / np.float32(7)
    row[263] = -np.inf
    return row


def score(
    row: Float32Array,
    token_id: int,
    num_top: int,
    explicit: tuple[int, ...],
    position: int = 0,
) -> LogprobArrays:
    """The logprobs of one position, which are the values of `row` themselves; what was kept is an
    eighth of the position."""
    order = np.lexsort((np.arange(len(row)), -row))
    top = order[:num_top].astype(np.int32)
    return LogprobArrays(
        chosen=row[[token_id]],
        ranks=np.array([int(np.flatnonzero(order == token_id)[0]) + 1], dtype=np.int32),
        top_ids=top[None],
        top_logprobs=row[top][None],
        explicit=row[list(explicit)][None].astype(np.float32),
        kept=np.array([-position / 8], dtype=np.float32),
    )


def item_scores(request: ScoringRequest, finish: Finish = Finish.LENGTH) -> ItemScores:
    """Logprobs of `value_row` after as many tokens; the query's first 16 are said to be cached."""
    values, others, best, highest, sums, p = [], [], [], [], [], 0
    lens = request.item_lens
    if request.branches is not None:
        lens = np.repeat(lens, request.branches.counts) + request.branches.lens
    for length, num_read in zip(lens.tolist(), request.num_read.tolist(), strict=True):
        for back in reversed(range(num_read)):
            row = value_row(len(request.query_token_ids) + length - back).astype(np.float64)
            sums.append(np.logaddexp.reduce(row))
            table = row - sums[-1]
            ids = request.id_lists[p % len(request.id_lists)]
            values.append(table[ids])
            others.append(np.logaddexp.reduce(np.delete(table, ids[ids >= 0])))
            table[ids[ids >= 0]] = -np.inf
            best.append(int(table.argmax()))
            highest.append(table.max())
            p += 1
    done = finish == Finish.LENGTH
    return ItemScores(
        handle=request.handle,
        finish=finish,
        num_cached=min(len(request.query_token_ids), 16),
        values=np.array(values if done else [], dtype=np.float32),
        others=np.array(others if done else [], dtype=np.float32),
        best_ids=np.array(best if done else [], dtype=np.int32),
        best=np.array(highest if done else [], dtype=np.float32),
        log_sums=np.array(sums if done else [], dtype=np.float64),
        hidden=hidden_states(request) if done and request.embeds else None,
        error="the step failed" if finish == Finish.ERROR else None,
    )


def hidden_states(request: ScoringRequest) -> Float32Array:
    """float32 [P, 8]: of each position that is read, sines of its token's id."""
    ends = np.cumsum(request.item_lens)
    reads = zip(ends.tolist(), request.num_read.tolist(), strict=True)
    places = np.concatenate([np.arange(end - num_read, end) for end, num_read in reads])
    tokens = request.item_token_ids[places].astype(np.float64)
    hidden: Float32Array = np.sin(tokens[:, None] + np.arange(8)).astype(np.float32)
    return hidden


def prompt_logprobs_of(request: Request) -> PromptLogprobs:
    """The prompt logprobs that a request asks for."""
    wanted = request.prompt_logprobs
    assert wanted is not None
    tokens = request.prompt_token_ids.tolist()
    rows = [
        score(value_row(i), tokens[i], wanted.num_top, wanted.token_ids)
        for i in range(wanted.start, len(tokens))
    ]
    return PromptLogprobs(handle=request.handle, start=wanted.start, logprobs=stack(rows))


def stack(rows: list[LogprobArrays]) -> LogprobArrays:
    """Positions under one another, narrow ones filled up with what nobody may read."""
    num_top = max(row.num_top for row in rows)
    stacked = LogprobArrays.zeros((len(rows),), num_top, max(row.num_explicit for row in rows))
    stacked.top_ids[:], stacked.top_logprobs[:], stacked.explicit[:] = -1, -1, -1
    for i, row in enumerate(rows):
        stacked.put(slice(i, i + 1), row)
    return stacked


BLANK = score(value_row(0), 0, 0, ())
"""One position of a choice that asked for no logprobs."""
