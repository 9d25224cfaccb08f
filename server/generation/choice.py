"""One choice as it grows: tokens go in, pieces of a reply come out.

A stream takes a piece whenever there is one, a plain reply takes the only piece at the end, so
the two agree by construction. With stop strings a token is given out when some of its text is; a
stop string that is found drops every token that begins at or after the cut.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator

import msgspec

from engine.arrays import Int64Array, LogprobArrays
from engine.contracts.control import FIRST_VERSION
from engine.messages.step_output import Finish, Origin, PromptLogprobs
from engine.submission import Entry
from server.generation.form import ReplyForm
from server.generation.logprob_queue import LogprobQueue, LonePosition
from server.generation.routes import Routes
from server.text.detokenize import Detokenizer
from server.text.stop import StopMatcher

MOST_LONE = 8
"""Tokens that a stream gives out in pieces of one at a time at most; more are faster together."""
_REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.CANCELED: "abort"}


class WeightSpan(msgspec.Struct, frozen=True):
    """Generated tokens start .. end - 1 were drawn by the weights of this version."""

    version: str
    start: int
    end: int


class Piece(msgspec.Struct, frozen=True):
    """A part of a choice's reply that is given out at one time.

    Attributes:
        first: nothing was given out before; what is reported of the prompt goes with this piece.
        token_ids: the tokens of this piece.
        origins: `Origin` codes of these tokens, where the form asks for them.
        starts: the tokens' places in the generated text, where the form needs them.
        values: logprobs of these tokens, or of the dropped one where nothing is generated.
        prompt_logprobs: on the first piece only, where the engine reported any; parts on any.
        finish_reason: set on the last piece only.
        place: of a lone token of a stream, in place of `values`: few need arrays of its own.
        weight_versions: of all the choice's tokens, on the last piece only.
    """

    first: bool
    text: str
    token_ids: list[int]
    origins: list[int]
    starts: list[int]
    values: LogprobArrays | None
    prompt_logprobs: PromptLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    weight_versions: tuple[WeightSpan, ...]
    place: LonePosition | None

    @property
    def logprobs(self) -> LogprobArrays | None:
        """The values, wherever they are."""
        return self.values if self.place is None else self.place.alone()


class ReplyChoice:
    """The text, tokens and logprobs of one choice.

    Attributes:
        index: the choice's number in the reply.
        prompt_idx: the prompt that this choice continues.
        prompt_logprobs: of that prompt, once the engine has reported them.
        prompt_parts: of it, those parts that arrived and were not given out.
        finish_reason: None while the choice goes on.
        num_generated: tokens drawn, up to the one that completed a stop string.
        drafts: counts of its drafts, as `StepOutput.drafts`; None without a drafter.
        weight_version: of the weights that drew the last tokens.
        awaits_routes: a stop string ended it, and its routes have not come.
        routes: of its tokens, where they were asked for and it has ended.
    """

    def __init__(
        self, index: int, prompt_idx: int, form: ReplyForm, detokenizer: Detokenizer
    ) -> None:
        self.index = index
        self.prompt_idx = prompt_idx
        self.prompt_logprobs: PromptLogprobs | None = None
        self.prompt_parts: list[PromptLogprobs] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.num_generated = 0
        self.drafts: Int64Array | None = None
        self.awaits_routes = False
        self.routes: Routes | None = None
        self._form = form
        self._is_eager, self._shows_logprobs = form.eager, form.shows_logprobs
        self._is_per_token, self._shows_tokens = form.per_token, form.shows_tokens
        self._detokenizer = detokenizer
        self._matcher = None if form.stops is None else StopMatcher(form.stops)
        self._finish = Finish.RUNNING
        self._waiting: list[int] = []
        self._token_ids: list[int] = []
        self._origins: list[int] = []
        self._starts: list[int] = []
        self._logprobs = LogprobQueue(form.num_top or 0, len(form.explicit_ids or ()))
        self._text = ""  # not given out yet
        self._num_chars_taken = 0
        self._num_tokens_taken = 0
        self._num_kept: int | None = None
        self._first = True
        self.weight_version = FIRST_VERSION
        self._weight_starts: list[tuple[str, int]] = []

    @property
    def num_waiting(self) -> int:
        """The number of tokens that were fed and not given out."""
        return len(self._waiting) + len(self._token_ids) - self._num_tokens_taken

    @property
    def num_shown(self) -> int:
        """The tokens of a choice that has ended, as its reply has them."""
        if self._num_kept is not None:
            return self._num_kept
        return len(self._waiting) + len(self._token_ids)

    def feed(self, entry: Entry) -> bool:
        """Take in what the engine reports; returns whether the choice has ended.

        Text is made at once where the form needs it at once, else when the piece is taken.
        """
        form, starts = self._form, self._weight_starts
        token_ids: list[int] = entry.token_ids.tolist()
        if token_ids and self._shows_logprobs:
            self._keep_logprobs(entry)
        self._finish = finish = entry.finish
        self.weight_version = entry.weight_version
        self.drafts = entry.drafts
        if token_ids and (not starts or starts[-1][0] != entry.weight_version):
            starts.append((entry.weight_version, self.num_generated))
        if not form.next_token_only:
            self._waiting += token_ids
            self.num_generated += len(token_ids)
            if form.origins:
                self._origins += _origins_of(entry)
        if finish in _REASONS:
            self.finish_reason = "length" if form.next_token_only else _REASONS[finish]
            if self.finish_reason == "stop" and self._waiting[-1] not in form.silent_ends:
                self.stop_reason = self._waiting[-1]
        if self._is_eager:
            self._decode()
        return self.finish_reason is not None

    def _keep_logprobs(self, entry: Entry) -> None:
        """Queue the entry's logprobs, as they are in a stream, which gives them out at once.

        A plain reply keeps a copy: a step's arrays are as wide as its widest row and hold the
        memory of all rows.
        """
        if self._form.stream and (arrays := entry.output.logprobs) is not None:
            self._logprobs.push(arrays, entry.start, entry.start + entry.num_new)
        elif (arrays := entry.logprobs) is not None:
            num_top, num_explicit = self._form.num_top or 0, len(self._form.explicit_ids or ())
            self._logprobs.push(arrays.narrow(num_top, num_explicit).copy())

    def _decode(self) -> None:
        """Make text of the tokens that wait, all of it when no more will come."""
        token_ids, self._waiting = self._waiting, []
        self._token_ids += token_ids
        starts = self._starts if self._is_per_token else None
        hidden = bool(token_ids) and self._finish == Finish.STOP and not self._form.include_stop
        visible = token_ids[:-1] if hidden else token_ids
        text = self._detokenizer.feed(visible, starts)
        if self._finish != Finish.RUNNING:
            text += self._detokenizer.flush()
        if hidden and starts is not None:
            starts.append(self._detokenizer.length)
        self._text += text
        if self._matcher is not None:
            self._stop_at_string(self._matcher, text)

    def _stop_at_string(self, matcher: StopMatcher, text: str) -> None:
        """End at a stop string that the new text completes, if it completes one."""
        starts, min_tokens = self._starts, self._form.min_tokens
        match = matcher.feed(text, starts[min_tokens] if min_tokens < len(starts) else sys.maxsize)
        if match is None:
            return
        cut = match.end if self._form.include_stop else match.start
        self._text = self._text[: cut - self._num_chars_taken]
        self._num_kept = bisect_left(starts, cut)
        self.num_generated = bisect_left(starts, match.end)
        self.finish_reason, self.stop_reason = "stop", match.stop

    def take_by_token(self) -> Iterator[Piece]:
        """The next pieces, a token in each, as a stream that keeps up would have had them.

        One that lags far has all of it in one piece, which takes less time a token.
        """
        if self.num_waiting > MOST_LONE:
            if (piece := self.take()) is not None:
                yield piece
            return
        while (piece := self.take(1)) is not None:
            yield piece
            if not self.num_waiting or piece.finish_reason is not None:
                return

    def take(self, most: int = sys.maxsize) -> Piece | None:
        """The next piece: what can be given out and was not; None where there is nothing.

        Args:
            most: tokens in it; what comes with later ones is left.
        """
        if self._waiting:
            self._decode()
        form, finished = self._form, self.finish_reason is not None
        held = self._matcher.held if self._matcher and not finished else 0
        text = self._text[: len(self._text) - held]
        upto = self._num_releasable(len(text), finished)
        if upto > self._num_tokens_taken + most:
            upto, finished = self._num_tokens_taken + most, False
            text = text[: max(self._starts[upto] - self._num_chars_taken, 0)]
        token_ids = self._token_ids[self._num_tokens_taken : upto]
        shows_prompt = self._first and form.shows_prompt
        reported = self._take_prompt() if self._first or self.prompt_parts else None
        if not (text or finished or shows_prompt or reported or (token_ids and self._shows_tokens)):
            return None
        place, values = None, None
        if len(token_ids) == 1 and form.stream:
            place = self._logprobs.take_lone()
        else:
            values = self._logprobs.take(1 if form.next_token_only else len(token_ids))
        piece = Piece(
            first=self._first,
            text=text,
            token_ids=token_ids,
            origins=self._origins[self._num_tokens_taken : upto],
            starts=self._starts[self._num_tokens_taken : upto],
            values=values,
            prompt_logprobs=reported,
            finish_reason=self.finish_reason if finished else None,
            stop_reason=self.stop_reason if finished else None,
            weight_versions=self._weight_spans(upto) if finished else (),
            place=place,
        )
        self._first = False
        self._text = self._text[len(text) :]
        self._num_chars_taken += len(text)
        self._num_tokens_taken = upto
        return piece

    def _weight_spans(self, count: int) -> tuple[WeightSpan, ...]:
        """Which weights drew the first `count` tokens."""
        starts = [(version, start) for version, start in self._weight_starts if start < count]
        ends = [start for _, start in starts[1:]] + [count] * bool(starts)
        return tuple(
            WeightSpan(version, start, end)
            for (version, start), end in zip(starts, ends, strict=True)
        )

    def _take_prompt(self) -> PromptLogprobs | None:
        """What is to be reported of the prompt: all of it, or the parts that wait, as one.

        Parts begin again where weights changed; those of before are of no more use.
        """
        if not self.prompt_parts:
            return self.prompt_logprobs
        parts, self.prompt_parts = self.prompt_parts, []
        least = min(part.start for part in parts)
        parts = parts[max(i for i, part in enumerate(parts) if part.start == least) :]
        whole = LogprobArrays.concat([part.logprobs for part in parts])
        return msgspec.structs.replace(parts[0], logprobs=whole)

    def _num_releasable(self, num_chars: int, finished: bool) -> int:
        """The number of tokens that may be out once so many more characters are."""
        if finished:
            return len(self._token_ids) if self._num_kept is None else self._num_kept
        if self._matcher is None:
            return len(self._token_ids)
        return bisect_left(self._starts, self._num_chars_taken + num_chars)


def _origins_of(entry: Entry) -> list[int]:
    """`Origin` codes of an entry's tokens."""
    if (codes := entry.origins) is None:
        return [Origin.DRAWN] * entry.num_new
    origins: list[int] = codes.tolist()
    return origins
