"""Drafts from what followed earlier copies of a row's last tokens, by vote (suffix decoding).

Oliaro et al. 2024, "SuffixDecoding". A place matches as many tokens as the text up to it and the
row's own text have in common at their ends, `depth` at most. For each length m of match, the places
that match m tokens or more vote on the next token, those that agreed with the winner on the one
after it, and so on. A token's probability is the share of its voters times the probability of the
token before it; a path ends below `least`, or after `factor` x m tokens. The drafts are the path
with the greatest sum of probabilities, of equal ones that of the longest match.

A suffix tree answers the same question from counts that it keeps. Here the texts are their own
index: a step compares each place anew, 4 bytes of history for a token whose keys and values
attention reads anyway, tens of thousands of bytes. So nothing has to be built, bounded or taken
back where drafts are refused, and what a row drafts depends on its text alone.

Places are in the row's own text, where what follows is repeated beyond the text's end, and for rows
that may read them in recent outputs of other requests (`engine.memory.recent_outputs`). Of more
than `PLACES` that match the longest matches vote, of equally long ones the latest in the row's own
text first; the same order decides where tokens have equally many votes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.contracts.drafter import VerifiedStep
from engine.kernels.suffix import MAX_DEPTH, PLACES, suffix_drafts_triton
from engine.memory.recent_outputs import RecentOutputs
from engine.speculation.text_drafter import TextDrafter
from engine.speculative_config import SuffixRules


class SuffixDrafter(TextDrafter):
    """The `Drafter` that reads a row's own text and outputs of others.

    Args:
        recent: outputs of other requests; None reads none.
    """

    def __init__(
        self,
        num_tokens: int,
        rules: SuffixRules,
        history: torch.Tensor,
        recent: RecentOutputs | None = None,
    ) -> None:
        super().__init__(num_tokens, history)
        self._rules = rules
        self._recent = recent

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        batch = step.sampling  # positions of the first draft: as many tokens are known
        drafts = suffix_drafts(
            self._history, batch.rows, batch.positions, self.num_tokens, self._rules, self._recent
        )
        return drafts[:, : step.num_drafts]


def suffix_drafts(
    history: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    num_tokens: int,
    rules: SuffixRules,
    recent: RecentOutputs | None = None,
) -> torch.Tensor:
    """Find the drafts int32 [L, num_tokens] of rows; -1 after the last one.

    Args:
        history: int32 [max_rows + 1, max_len].
        rows: int32 [L]. lengths: int64 [L], tokens of the history that are known.
        recent: outputs of other requests, which the rows may read that it says.
    """
    if history.is_cuda:
        others = (None, None) if recent is None else (recent.tokens, recent.readers)
        return suffix_drafts_triton(history, rows, lengths, num_tokens, *rules, *others)
    return suffix_drafts_torch(history, rows, lengths, num_tokens, rules, recent)


def suffix_drafts_torch(
    history: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    num_tokens: int,
    rules: SuffixRules,
    recent: RecentOutputs | None = None,
) -> torch.Tensor:
    """Compute `suffix_drafts` on a CPU, where the host may look at lengths."""
    drafts = torch.full((len(rows), num_tokens), -1, dtype=torch.int32)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        tokens = history[row, :length]
        votes = _own_votes(tokens, num_tokens, rules.depth)
        if recent is not None and bool(recent.readers[row]):
            others = _recent_votes(tokens, recent.tokens, num_tokens, rules.depth)
            votes = _Votes(*(torch.cat(pair) for pair in zip(votes, others, strict=True)))
        if len(votes.matches):
            drafts[i] = _best_path(votes.of_longest(), rules)
    return drafts


class _Votes(NamedTuple):
    """Places that match, in the order in which they win where votes are equal."""

    matches: torch.Tensor  # int64 [n], tokens that match
    following: torch.Tensor  # int32 [n, k], the tokens that follow; -1 after the last

    def of_longest(self) -> _Votes:
        """The votes of the `PLACES` longest matches, the first ones of equally long ones."""
        order = torch.argsort(-self.matches, stable=True)[:PLACES].sort().values
        return _Votes(self.matches[order], self.following[order])


def _own_votes(tokens: torch.Tensor, num_tokens: int, depth: int) -> _Votes:
    """The votes of a row's own text, the latest first."""
    places, matches = _matches(tokens, tokens[:-1], depth)
    first = (places + 1)[:, None]
    ahead = torch.arange(num_tokens) % (len(tokens) - first)
    return _Votes(matches, tokens[first + ahead])


def _recent_votes(
    tokens: torch.Tensor, recent: torch.Tensor, num_tokens: int, depth: int
) -> _Votes:
    """The votes of recent outputs, which end at -1."""
    places, matches = _matches(tokens, recent, depth)
    following = recent[(places[:, None] + 1 + torch.arange(num_tokens)) % len(recent)]
    going_on = (following >= 0).cumprod(dim=1)
    return _Votes(matches, torch.where(going_on > 0, following, -1))


def _matches(
    tokens: torch.Tensor, text: torch.Tensor, depth: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of a text that match the end of `tokens`, the latest first, and how far."""
    places = (text == tokens[-1]).nonzero().flatten().flip(0)
    matches = torch.ones_like(places)
    going_on = torch.arange(len(places))
    for n in range(1, min(depth, len(tokens))):
        going_on = going_on[places[going_on] >= n]
        going_on = going_on[text[places[going_on] - n] == tokens[len(tokens) - 1 - n]]
        if not len(going_on):
            break
        matches[going_on] = n + 1
    return places, matches


def _best_path(votes: _Votes, rules: SuffixRules) -> torch.Tensor:
    """The path int32 [k] of the length of match that scores highest."""
    levels = torch.arange(1, MAX_DEPTH + 1)
    num_tokens = votes.following.shape[1]
    voters = (votes.matches >= levels[:, None]) & (levels <= rules.depth)[:, None]
    limits = (levels.float() * rules.factor).floor().clamp(max=num_tokens)
    probability, score = torch.ones(len(levels)), torch.zeros(len(levels))
    path = torch.full((len(levels), num_tokens), -1, dtype=torch.int32)
    for j, tokens in enumerate(votes.following.unbind(1)):
        agrees = (tokens[:, None] == tokens) & (tokens >= 0)
        counts = (voters.float() @ agrees.float()).masked_fill(~voters, 0.0)
        num_votes, winners = counts.max(1)
        winners = (counts == num_votes[:, None]).int().argmax(1)
        probability *= num_votes / voters.sum(1).clamp(min=1).float()
        holds = (num_votes > 0) & (probability >= rules.least) & (j < limits)
        path[holds, j] = tokens[winners][holds]
        score += torch.where(holds, probability, 0.0)
        voters &= holds[:, None] & (tokens == tokens[winners][:, None])
    return path[int((score == score.max()).nonzero().max())]
