"""A host for `Sampler` tests: it admits requests to rows, steps them and keeps their history."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig, SamplerOutput

Logits = Callable[[int, int], Tensor]
"""(request, position) to float32 [vocab_size]: equal logits whatever the batch."""


@dataclass
class Request:
    """One choice: its parameters, its noise key and its tokens so far, the prompt's first.

    `allowed` are the ids that its grammar allows next, if it has one.
    """

    params: SamplingParams
    seed: int = 0
    choice: int = 0
    tokens: list[int] = field(default_factory=lambda: [1, 2, 3])
    allowed: Sequence[int] | None = None
    prompt_len: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)


def batch_of_all(rows: SamplingRows, position: int) -> SamplingBatch:
    """One logit row for each of the rows, at the same position of its text."""
    rows_np = np.arange(rows.max_rows, dtype=np.int32)
    return SamplingBatch(
        torch.arange(rows.max_rows, dtype=torch.int32, device=rows.device),
        torch.full((rows.max_rows,), position, device=rows.device),
        rows_np,
        rows.needs(rows_np),
    )


def make_batch(
    wishes: list[dict[str, Any]], device: torch.device, vocab_size: int
) -> tuple[SamplingBatch, SamplingRows]:
    n = len(wishes)
    history = torch.zeros(n, 8, dtype=torch.int32, device=device)
    rows = SamplingRows(n, vocab_size, device, history=history)
    for row, wish in enumerate(wishes):
        rows.add(row, SamplingParams(**wish), seed=row, choice=0, prompt_len=1, num_tokens=4)
    rows.flush()
    return batch_of_all(rows, 4), rows


class Host:
    """`num_rows` sampling rows and the requests in them."""

    def __init__(
        self, num_rows: int, vocab_size: int, max_len: int = 64, *, where: str = "cpu"
    ) -> None:
        device = torch.device(where)
        history = torch.zeros(num_rows, max_len, dtype=torch.int32, device=device)
        self.rows = SamplingRows(num_rows, vocab_size, device, history=history, max_masks=num_rows)
        self.sampler = Sampler(SamplerConfig(), self.rows)
        self.requests: dict[int, Request] = {}

    def admit(self, row: int, request: Request) -> None:
        """Give a request a row, with the tokens it has."""
        num_tokens = len(request.tokens)
        self.rows.history[row, :num_tokens] = torch.tensor(request.tokens, dtype=torch.int32)
        self.rows.add(
            row,
            request.params,
            seed=request.seed,
            choice=request.choice,
            prompt_len=request.prompt_len,
            num_tokens=num_tokens,
        )
        self.requests[row] = request

    def remove(self, row: int) -> Request:
        """Take a request out of its row."""
        self.rows.remove(row)
        return self.requests.pop(row)

    def batch(self, rows: Sequence[int]) -> SamplingBatch:
        """The next token of each of these rows, in this order."""
        rows_np = np.array(rows, dtype=np.int32)
        positions = [len(self.requests[row].tokens) for row in rows]
        allowed = [self.requests[row].allowed for row in rows]
        device = self.rows.device
        return SamplingBatch(
            torch.from_numpy(rows_np).to(device),
            torch.tensor(positions, device=device),
            rows_np,
            self.rows.needs(rows_np),
            mask_slots=put_masks(self.rows, allowed),
        )

    def step(self, rows: Sequence[int], logits: Tensor) -> SamplerOutput:
        """Draw a token for each row and append it."""
        self.rows.flush()
        output = self.sampler(logits, self.batch(rows))
        for row, token in zip(rows, output.token_ids.tolist(), strict=True):
            tokens = self.requests[row].tokens
            self.rows.history[row, len(tokens)] = token
            tokens.append(token)
        return output


def put_masks(rows: SamplingRows, allowed: Sequence[Sequence[int] | None]) -> Tensor | None:
    """Write the masks of some logit rows; return their slots, the last mask in slot 0."""
    masked = [i for i, ids in enumerate(allowed) if ids is not None]
    if not masked:
        return None
    slots = torch.full((len(allowed),), -1, dtype=torch.int32)
    slots[masked] = torch.arange(len(masked) - 1, -1, -1, dtype=torch.int32)
    bitmaps = [bitmap(allowed[i] or (), rows.vocab_size) for i in reversed(masked)]
    rows.put_masks(np.stack(bitmaps))
    return slots.to(rows.device)


def bitmap(allowed: Sequence[int], vocab_size: int) -> npt.NDArray[np.int32]:
    """A mask of allowed ids, int32 [ceil(vocab_size / 32)]; bits beyond the vocabulary are set."""
    words = [0] * -(-vocab_size // 32)
    for token in [*allowed, *range(vocab_size, 32 * len(words))]:
        words[token // 32] |= 1 << token % 32
    return np.array(words, dtype=np.uint32).view(np.int32)


def draw(requests: Sequence[Request], logits: Tensor) -> SamplerOutput:
    """The next token of each request, request i in row i; the requests stay as they are."""
    host = Host(len(requests), min(logits.shape[1], 1 << 20))
    for row, request in enumerate(requests):
        host.admit(row, request)
    host.rows.flush()
    return host.sampler(logits, host.batch(range(len(requests))))


def make_logits(n: int, width: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    """float32 [n, width], normal."""
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * scale
