"""One choice as it grows: tokens in, pieces of a reply out.

A stream takes a piece whenever there is one, a plain reply takes the only piece at the end, so
the two agree by construction. With stop strings a token is given out when some of its text is; a
stop string that is found drops every token that begins at or after the cut.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from engine.request import Finish, Int64Array, LogprobArrays
from engine.submission import Entry
from server.completions.logprob_arrays import ScoreQueue, own
from server.completions.prepare import ReplyForm
from server.text.detokenize import Detokenizer
from server.text.stop import StopMatcher

_REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length"}


class Piece(msgspec.Struct, frozen=True):
    """A part of a choice's reply.

    Attributes:
        first: the prompt's part goes with this piece.
        token_ids: of this piece; `starts` are their places in the generated text, where kept.
        logprobs: of these tokens, or of the dropped one where nothing is generated.
        finish_reason: set on the last piece.
    """

    first: bool
    text: str
    token_ids: list[int]
    starts: list[int]
    logprobs: LogprobArrays | None
    finish_reason: str | None
    stop_reason: str | int | None


class ReplyChoice:
    """Text, tokens and logprobs of one choice.

    Attributes:
        prompt_idx: whose continuation this is.
        finish_reason: None while it goes on.
        num_generated: tokens drawn, up to the one that completed a stop string.
        drafts: what became of its drafts, as `StepOutput.drafts`; None without a drafter.
    """

    def __init__(
        self, index: int, prompt_idx: int, form: ReplyForm, detokenizer: Detokenizer
    ) -> None:
        self.index = index
        self.prompt_idx = prompt_idx
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.num_generated = 0
        self.drafts: Int64Array | None = None
        self._form = form
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(form.stops) if form.stops else None
        self._finish = Finish.RUNNING
        self._waiting: list[int] = []
        self._token_ids: list[int] = []
        self._starts: list[int] = []
        self._scores = ScoreQueue()
        self._text = ""  # not given out yet
        self._num_chars_taken = 0
        self._num_tokens_taken = 0
        self._num_kept: int | None = None
        self._first = True

    @property
    def num_waiting(self) -> int:
        """Tokens fed and not given out."""
        return len(self._waiting) + len(self._token_ids) - self._num_tokens_taken

    def feed(self, entry: Entry) -> bool:
        """Take in what the engine reports; whether the choice has ended.

        Text is made now where it is needed now, else when the piece is taken.
        """
        form = self._form
        token_ids: list[int] = entry.token_ids.tolist()
        if (arrays := entry.logprobs) is not None and token_ids and form.shows_logprobs:
            self._scores.push(own(arrays, form.num_top or 0, len(form.explicit_ids or ())))
        self._finish = finish = entry.finish
        self.drafts = entry.drafts
        if not form.next_token_only:
            self._waiting += token_ids
            self.num_generated += len(token_ids)
        if finish in _REASONS:
            self.finish_reason = "length" if form.next_token_only else _REASONS[finish]
            if self.finish_reason == "stop" and self._waiting[-1] not in form.silent_ends:
                self.stop_reason = self._waiting[-1]
        if form.eager:
            self._decode()
        return self.finish_reason is not None

    def _decode(self) -> None:
        """Make text of the tokens that wait, all of it when no more will come."""
        token_ids, self._waiting = self._waiting, []
        self._token_ids += token_ids
        starts = self._starts if self._form.per_token else None
        known = len(self._text)
        hidden = bool(token_ids) and self._finish == Finish.STOP and not self._form.include_stop
        visible = token_ids[:-1] if hidden else token_ids
        self._text += self._detokenizer.feed(visible, starts)
        if self._finish != Finish.RUNNING:
            self._text += self._detokenizer.flush()
        if hidden and starts is not None:
            starts.append(self._detokenizer.length)
        if self._matcher is not None:
            self._stop_at_string(self._matcher, known)

    def _stop_at_string(self, matcher: StopMatcher, known: int) -> None:
        """End at a stop string among the new text, if there is one."""
        min_tokens = self._form.min_tokens
        if min_tokens >= len(self._starts):
            return
        base = self._num_chars_taken
        match = matcher.find(self._text, max(known, self._starts[min_tokens] - base))
        if match is None:
            return
        cut = match.end if self._form.include_stop else match.start
        self._text = self._text[:cut]
        self._num_kept = bisect_left(self._starts, base + cut)
        self.num_generated = bisect_left(self._starts, base + match.end)
        self.finish_reason, self.stop_reason = "stop", match.stop

    def take(self) -> Piece | None:
        """What can be given out now and was not; None for nothing."""
        if self._waiting:
            self._decode()
        form, finished = self._form, self.finish_reason is not None
        held = self._matcher.held(self._text) if self._matcher and not finished else 0
        text = self._text[: len(self._text) - held]
        upto = self._num_releasable(len(text), finished)
        token_ids = self._token_ids[self._num_tokens_taken : upto]
        shows_prompt = self._first and form.shows_prompt
        if not (text or finished or shows_prompt or (token_ids and form.shows_tokens)):
            return None
        piece = Piece(
            first=self._first,
            text=text,
            token_ids=token_ids,
            starts=self._starts[self._num_tokens_taken : upto],
            logprobs=self._scores.take(1 if form.next_token_only else len(token_ids)),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        self._first = False
        self._text = self._text[len(text) :]
        self._num_chars_taken += len(text)
        self._num_tokens_taken = upto
        return piece

    def _num_releasable(self, num_chars: int, finished: bool) -> int:
        if finished:
            return len(self._token_ids) if self._num_kept is None else self._num_kept
        if self._matcher is None:
            return len(self._token_ids)
        return bisect_left(self._starts, self._num_chars_taken + num_chars)
