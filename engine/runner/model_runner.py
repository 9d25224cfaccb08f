"""One step on the device: prepare, forward, sample, copy out. Nothing here waits for results."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.batch import InputBatch, RequestRows, make_batch
from engine.buffers import HostCopy, HostStream, InlineLauncher, is_device_lost
from engine.contracts.model import CausalLM
from engine.contracts.scoring import ScoringPlan
from engine.plan import PromptSpan, RunnerLostError, StepPlan, StepResult
from engine.request import Int32Array, LogprobArrays
from engine.runner.decode_graphs import DecodeGraphs
from engine.runner.forward import Forward
from engine.runner.scoring import LaunchedScoring, issue_scoring
from engine.runner.speculation import Drawn, Speculation, num_offered
from sampling.batch import LogprobsOutput
from sampling.paths.prompt_logprobs import PromptReporter
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplingBatch

PROMPT_LOGITS_BYTES = 64 << 20
"""Float32 logits held at once while a prompt is scored."""


_NO_TOKENS = np.zeros(0, dtype=np.int32)


class LaunchedStep:
    """A step that was launched; `wait` gives what it computed."""

    def __init__(self, plan: StepPlan, issued: Future[HostCopy]) -> None:
        self.plan = plan
        self._issued = issued

    def wait(self, timeout_s: float | None = None) -> StepResult:
        """The result; see `StepHandle`."""
        try:
            arrays = self._issued.result(timeout_s).arrays()
        except TimeoutError:
            raise
        except Exception as error:
            if is_device_lost(error):
                raise RunnerLostError(str(error)) from error
            raise
        bad = arrays.get("bad", _NO_TOKENS.astype(np.bool_))
        return StepResult(
            token_ids=arrays.get("token_ids", _NO_TOKENS[:, None]),
            num_new=arrays.get("num_new", (~bad).astype(np.int32)),
            bad=bad,
            num_offered=arrays.get("num_offered"),
            num_accepted=arrays.get("num_accepted"),
            logprobs=_logprob_arrays(arrays, "") if "chosen" in arrays else None,
            prompt_logprobs=[_logprob_arrays(arrays, f"{i}/") for i in range(len(self.plan.spans))],
        )


class ModelRunner:
    """Runs plans against a model, its cache and its rows, in the order they are launched.

    Args:
        forward: of the model. It serves every step the graphs do not.
        graphs: captured, for steps in which every row decodes.
        speculation: None where nothing is drafted.
    """

    def __init__(
        self,
        model: CausalLM,
        forward: Forward,
        rows: RequestRows,
        sampling_rows: SamplingRows,
        sampler: Sampler,
        graphs: DecodeGraphs | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self._model = model
        self._forward = forward
        self._rows = rows
        self._sampling_rows = sampling_rows
        self._sampler = sampler
        self._graphs = graphs
        self._speculation = speculation
        self._launcher = HostStream() if rows.device.type == "cpu" else InlineLauncher()

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Issue a step behind those already issued."""
        return LaunchedStep(plan, self._launcher(self._issue, plan))

    def launch_scoring(self, plan: ScoringPlan) -> LaunchedScoring:
        """Issue a step of scoring behind what was issued before."""
        work = (plan, self._model, self._forward, self._rows.device)
        return LaunchedScoring(self._launcher(issue_scoring, *work))

    def forget(self, rows: Int32Array) -> None:
        """Vacate rows outside the course of a step, as after a measurement."""
        for row in rows.tolist():
            self._sampling_rows.remove(row)
        self._rows.forget(rows)

    @property
    def rows_by_path(self) -> dict[str, int]:
        """Rows drawn so far, by the sampler's path."""
        return dict(self._sampler.rows_by_path)

    @torch.inference_mode()
    def _issue(self, plan: StepPlan) -> HostCopy:
        self._apply(plan)
        if self._graphs is not None and plan.is_decode:
            return HostCopy(_results(self._graphs.replay(plan)))
        batch = make_batch(plan, self._rows)
        hidden = self._forward(batch.input_ids, batch.positions, batch.attention)
        results: dict[str, torch.Tensor] = {}
        for i, span in enumerate(plan.spans):
            results |= _named(self._score(plan, span, batch, hidden.final), f"{i}/")
        num_new = None
        if plan.samples.any():
            drawn = self._draw(plan, batch, hidden.final)
            self._rows.enter(batch, drawn.token_ids)
            results |= _results(drawn)
            num_new = drawn.num_new
        self._rows.advance(batch, num_new)
        if self._speculation is not None and plan.runs_drafter:
            self._speculation.propose(plan, batch, hidden, num_new)
        return HostCopy(results)

    def _apply(self, plan: StepPlan) -> None:
        for row in plan.released:
            self._sampling_rows.remove(row)
        for admission in plan.admissions:
            choice = admission.choice
            self._sampling_rows.add(
                admission.row,
                choice.request.params,
                seed=choice.seed,
                choice=choice.index,
                prompt_len=choice.prompt_len,
                num_tokens=len(choice.token_ids),
            )
        self._rows.apply(plan)
        self._sampling_rows.flush()

    def _draw(self, plan: StepPlan, batch: InputBatch, hidden: torch.Tensor) -> Drawn:
        logits = self._model.logits(hidden[batch.logit_tokens])
        sampling_batch = SamplingBatch(
            rows=batch.logit_rows.to(torch.int32),
            positions=batch.draw_positions,
            rows_np=batch.logit_rows_np,
            needs=self._sampling_rows.needs(batch.logit_rows_np),
            depths=batch.depths if plan.num_drafts else None,
        )
        if self._speculation is None or not plan.num_drafts:
            return Drawn.plainly(self._sampler(logits, sampling_batch))
        self._sampler.count(plan.rows[plan.samples], verified=True)
        drafts = self._speculation.drafts_of(batch)
        verified = self._speculation.verify(logits, sampling_batch, drafts)
        return Drawn.verified(verified, num_offered(drafts))

    def _score(
        self, plan: StepPlan, span: PromptSpan, batch: InputBatch, hidden: torch.Tensor
    ) -> LogprobsOutput:
        """Prompt logprobs of a span, through the head in chunks of bounded size."""
        wanted = span.choice.request.prompt_logprobs
        assert wanted is not None
        start = int(batch.attention.query_starts_np[span.row_idx])
        row = int(plan.rows[span.row_idx])
        scorer = PromptReporter(
            span.choice.request.params,
            wanted.mode,
            wanted.num_top,
            wanted.token_ids,
            vocab_size=self._model.vocab_size,
            history=self._rows.token_ids[row],
        )
        chunk = max(1, PROMPT_LOGITS_BYTES // (4 * self._model.vocab_size))
        parts = []
        for first in range(start + span.first, start + span.last, chunk):
            tokens = slice(first, min(first + chunk, start + span.last))
            position = int(plan.starts[span.row_idx]) + first - start + 1
            parts.append(scorer(self._model.logits(hidden[tokens]), position))
        return LogprobsOutput(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _results(drawn: Drawn) -> dict[str, torch.Tensor]:
    tensors = drawn._asdict()
    logprobs: LogprobsOutput | None = tensors.pop("logprobs")
    named = {} if logprobs is None else _named(logprobs, "")
    return named | {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _named(output: LogprobsOutput, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in output._asdict().items()}


def _logprob_arrays(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> LogprobArrays:
    names = LogprobArrays.__struct_fields__
    return LogprobArrays(**{name: arrays[prefix + name] for name in names})
