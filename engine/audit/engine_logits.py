"""Logits of given tokens by an engine of this process, which serves them as a prompt."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
from msgspec import structs

from engine.arrays import Float32Array, LogprobArrays
from engine.audit.drawn import spread
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.messages.request import PromptLogprobsParams, Request
from engine.messages.step_output import Finish
from engine.startup.build import build_engine
from sampling.params import SamplingParams

MOST_VALUES = 2**24
"""Logits asked for at a time: 64 MiB of float32."""


class EngineLogits:
    """The engine of a configuration, asked for logits.

    Args:
        config: the server's; drafts are left out, since they change no logits.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._engine = build_engine(structs.replace(config, speculation=None))
        gc.unfreeze()  # the engine lives no longer than the audit
        self.vocab_size = self._engine.info.vocab_size
        self.max_model_len = self._engine.info.max_model_len
        self.dtype = self._engine.info.dtype

    def logits(self, token_ids: list[int], start: int) -> Iterator[Float32Array]:
        """Yield them as `engine.audit.drawn.LogitSource` says."""
        size = max(1, MOST_VALUES // self.vocab_size)
        for first in range(start, len(token_ids), size):
            yield from self._some(token_ids, first, min(first + size, len(token_ids)))

    def _some(self, token_ids: list[int], start: int, end: int) -> Iterator[Float32Array]:
        """Those of positions start .. end - 1: the last one's as those of a token to be drawn."""
        params = SamplingParams(
            temperature=0.0, logprobs=self.vocab_size, logprobs_mode="raw_logits"
        )
        wanted = PromptLogprobsParams(start=start, num_top=self.vocab_size, mode="raw_logits")
        request = Request(
            handle=0,
            prompt_token_ids=np.array(token_ids[: end - 1], dtype=np.int32),
            params=params,
            max_tokens=1,
            prompt_logprobs=wanted if end - start > 1 else None,
        )
        self._engine.submit(b"audit", request)
        parts: list[LogprobArrays] = []
        while self._engine.has_work:
            for _, output in self._engine.step():
                parts += [part.logprobs for part in output.prompt_logprobs]
                if Finish.ERROR in output.finish.tolist():
                    raise ConfigError(f"the engine: {output.errors.get(0)}")
                if Finish.NAN in output.finish.tolist():
                    raise ConfigError("the model's logits hold NaN")
                if output.logprobs is not None and len(output.token_ids):
                    parts.append(output.logprobs)
        for part in parts:
            yield from spread(part.top_ids, part.top_logprobs, self.vocab_size)
