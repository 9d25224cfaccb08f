"""Choices for tests of rows and of what plans them."""

from __future__ import annotations

import numpy as np

from engine.messages.request import Request
from engine.rows import Choice
from sampling.params import SamplingParams


def choice(prompt: list[int], params: SamplingParams | None = None, max_tokens: int = 8) -> Choice:
    ids = np.array(prompt, dtype=np.int32)
    request = Request(
        handle=1, prompt_token_ids=ids, params=params or SamplingParams(), max_tokens=max_tokens
    )
    return Choice(b"", request, 0, 0, 1, ids)
