"""What a request took and gave: its tokens, drafts and times, for replies, metrics and traces."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.stats import DraftStats
from engine.submission import Entry
from server.generation.choice import ReplyChoice
from server.generation.prepare import PreparedRequest
from server.http.account import GenerationReport

_NO_TIMES: tuple[float, ...] = (0.0, 0.0, 0.0)


class Tally:
    """The counts of one request, from when it is made ready.

    Args:
        choices: those that the engine has reported of, by number, as they come.

    Attributes:
        num_cached: prompt tokens served from the prefix cache, by prompt.
        num_unfinished: choices that have not ended.
        num_generated: tokens of all choices.
    """

    def __init__(self, prepared: PreparedRequest, choices: Mapping[int, ReplyChoice]) -> None:
        self.num_cached = [0] * len(prepared.prompts)
        self.num_unfinished = prepared.num_choices
        self.num_generated = 0
        self._prepared = prepared
        self._choices = choices
        self._metrics = prepared.served.metrics
        self._num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prepared.prompts)
        self._began = time.perf_counter()
        self._times = _NO_TIMES

    def note(self, prompt_idx: int, entry: Entry) -> None:
        """Keep what an entry says of its prompt and of times."""
        self.num_cached[prompt_idx] = max(self.num_cached[prompt_idx], entry.num_cached)
        if entry.times is not None:
            self.note_times(entry.times.tolist())

    def note_times(self, times: list[float]) -> None:
        """Keep the earliest of each kind of time; 0 means one that did not come yet."""
        pairs = zip(self._times, times, strict=True)
        self._times = tuple(min(known or new, new or known) for known, new in pairs)

    def finish(self, choice: ReplyChoice) -> None:
        """Count a choice that ended."""
        self.num_unfinished -= 1
        self._metrics.finished[choice.finish_reason or "error"].inc()
        self._metrics.generation_lens.observe(choice.num_generated)

    def usage(self) -> dict[str, Any]:
        """Tokens in and out so far."""
        num_prompt, num_generated = self._num_prompt_tokens, self.num_generated
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_generated,
            "total_tokens": num_prompt + num_generated,
        }
        if self._prepared.spec.form.usage_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(self.num_cached)}
        return usage

    def _draft_stats(self) -> DraftStats | None:
        """Counts of the drafts of all choices so far; None without a drafter."""
        counts = [c.drafts for c in self._choices.values() if c.drafts is not None]
        return DraftStats.of(np.sum(counts, axis=0)) if counts else None

    def draft_metrics(self) -> dict[str, Any] | None:
        """Counts of the drafts of all choices so far; None without a drafter."""
        if (stats := self._draft_stats()) is None:
            return None
        return {
            "num_drafts": stats.num_drafts,
            "num_draft_tokens": stats.num_draft_tokens,
            "num_accepted_tokens": stats.num_accepted,
            "acceptance_per_position": stats.acceptance,
        }

    def report(self) -> GenerationReport:
        """What the request asked for and what came of it so far."""
        prepared = self._prepared
        choices = [self._choices[index] for index in sorted(self._choices)]
        queued_at, started_at, drew_at = self._times
        return GenerationReport(
            model=prepared.spec.model,
            reply_id=prepared.spec.reply_id,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached=sum(self.num_cached),
            num_generated=self.num_generated,
            params=prepared.spec.params,
            max_tokens=max(prompt.max_tokens for prompt in prepared.prompts),
            num_choices=prepared.num_choices,
            finish_reasons=tuple(c.finish_reason for c in choices if c.finish_reason),
            drafts=self._draft_stats(),
            queued_at=queued_at,
            started_at=started_at,
            drew_at=drew_at,
        )

    def close(self, reason: str) -> None:
        """Count the request in the metrics, and what has not ended as `reason`."""
        metrics, prepared = self._metrics, self._prepared
        metrics.finished[reason].inc(self.num_unfinished)
        metrics.e2e.observe(time.perf_counter() - self._began)
        metrics.prompt_tokens.inc(self._num_prompt_tokens)
        metrics.generation_tokens.inc(self.num_generated)
        for prompt in prepared.prompts:
            metrics.prompt_lens.observe(len(prompt.token_ids))
            metrics.params_max_tokens.observe(prompt.max_tokens)
        metrics.params_n.observe(prepared.spec.n)
        lengths = [choice.num_generated for choice in self._choices.values()]
        metrics.most_generated.observe(max(lengths, default=0))
