"""The sampling parameters of every request in flight, as rows of device tables.

Host code writes the host's copy of the tables; `flush` publishes the rows that changed. A row is
one record of integers and one of floats, so that a step passes two tables to its kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampling.device.mirror import MirroredRows, Writes, publish
from sampling.edits import EditRows
from sampling.noise import NoiseKey
from sampling.params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from sampling.penalties import PenaltyCounts
from sampling.vocab_shard import VocabShard

# Columns of `SamplingRows.ints` and `.floats`.
SEED, CHOICE, TOP_K, PROMPT_LEN, NUM_EDITS, FLAGS, NUM_INTS = range(7)
TEMPERATURE, TOP_P, LOG_MIN_P, REPETITION, PRESENCE, FREQUENCY, NUM_FLOATS = range(7)

# Bits of FLAGS: what a row needs.
RANDOM, FILTERED, MASKED, EDITED, PENALIZED = 1, 2, 4, 8, 16
LOGPROBS, PROCESSED, NORMALIZED, FLASHINFER = 32, 64, 128, 256
TWICE_FILTERED = 512  # a top-p beside a top-k of more than `LARGE_TOP_K`
GRAMMAR, KEPT = 1024, 2048  # masks come with each step; the mass they leave is reported

_VALUES: Mapping[int, Callable[[SamplingParams], float]] = {
    TEMPERATURE: lambda params: params.temperature,
    TOP_P: lambda params: params.top_p,
    LOG_MIN_P: lambda params: math.log(params.min_p) if params.min_p > 0.0 else -math.inf,
    REPETITION: lambda params: params.repetition_penalty,
    PRESENCE: lambda params: params.presence_penalty,
    FREQUENCY: lambda params: params.frequency_penalty,
}
"""The value of each column of `SamplingRows.floats`, in order."""

_CHANGES: Mapping[int, Callable[[SamplingParams], bool]] = {
    MASKED: lambda params: params.allowed_token_ids is not None,
    PENALIZED: lambda params: params.penalized,
    GRAMMAR: lambda params: params.constrained,
}
"""The bits of parameters that change logits, and which requests have them."""
CHANGED = sum(_CHANGES) | EDITED
"""The bits of all rows whose logits are changed; a row is `EDITED` that has any edits."""

LARGE_TOP_K = 128  # the largest that the filters' shortlist takes
_TOP_BUCKETS = (0, 1, 5, 20, 128)
_EXPLICIT_BUCKETS = (0, 2, 16, MAX_LOGPROB_TOKEN_IDS)


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """Which stages a batch needs; equal needs replay the same CUDA graph.

    Attributes:
        flags: the union of the rows' FLAGS bits.
        greedy: whether any row is greedy.
        num_top: top tokens reported a row, the maximum rounded up to a bucket.
        num_explicit: explicit ids reported a row, rounded likewise.
    """

    flags: int
    greedy: bool
    num_top: int
    num_explicit: int

    @property
    def random(self) -> bool:
        """Whether any row is drawn at random."""
        return bool(self.flags & RANDOM)

    @property
    def filtered(self) -> bool:
        """Whether any row has a top-k, a top-p or a min-p."""
        return bool(self.flags & FILTERED)

    @property
    def twice_filtered(self) -> bool:
        """Whether any row has a top-p beside a top-k of more than `LARGE_TOP_K`."""
        return bool(self.flags & TWICE_FILTERED)

    @property
    def edited(self) -> bool:
        """Whether masks, bias or penalties change any row's logits."""
        return bool(self.flags & CHANGED)

    @property
    def only_grammars(self) -> bool:
        """Whether grammars' masks are all that changes logits, of any row."""
        return self.flags & CHANGED == GRAMMAR

    @property
    def penalized(self) -> bool:
        """Whether any row counts its tokens for penalties."""
        return bool(self.flags & PENALIZED)

    @property
    def logprobs(self) -> bool:
        """Whether any row reports logprobs."""
        return bool(self.flags & LOGPROBS)

    @property
    def processed(self) -> bool:
        """Whether any row reports values after processing."""
        return bool(self.flags & PROCESSED)

    @property
    def kept(self) -> bool:
        """Whether any row reports the mass that masks and filters left."""
        return bool(self.flags & KEPT)

    @property
    def flashinfer(self) -> bool:
        """Whether any row may be drawn by FlashInfer."""
        return bool(self.flags & FLASHINFER)


class SamplingRows:
    """Owns the per-request sampling state of `max_rows` rows.

    Args:
        max_rows: number of rows.
        vocab_size: number of valid token ids; logits may be wider.
        device: where the rows live.
        history: int32 [max_rows, max_len] on `device`, the engine's: prompt and output tokens
            of each row. Read on `flush` and, for bad words, while sampling.
        max_masks: most grammar masks of a step.
        shard: the ids whose logits come here; None is all of the vocabulary.

    Attributes:
        shard: see above.
        grammar_masks: int32 [max_masks, ceil(vocab_size / 32)], the ids that grammars allow at the
            logit rows of the step: a bit a token, low bit first, 1 where it is allowed. It never
            moves, so graphs may hold it.
    """

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        device: torch.device,
        *,
        history: Tensor,
        max_masks: int = 0,
        shard: VocabShard | None = None,
    ) -> None:
        self.max_rows, self.vocab_size, self.device = max_rows, vocab_size, device
        self.shard = shard or VocabShard.whole(vocab_size)
        self.history = history
        self._ints = MirroredRows((max_rows, NUM_INTS), np.int64, device)
        self._floats = MirroredRows((max_rows, NUM_FLOATS), np.float64, device)
        self._explicit = MirroredRows(  # -1 pads
            (max_rows, MAX_LOGPROB_TOKEN_IDS), np.int32, device, fill=-1
        )
        self.edits = EditRows(max_rows, vocab_size, device)
        self.counts = PenaltyCounts(max_rows, vocab_size, device)
        words = -(-vocab_size // 32)
        self.grammar_masks = torch.zeros((max_masks, words), dtype=torch.int32, device=device)
        self.flags_np = np.zeros(max_rows, dtype=np.int32)
        self._num_top_np = np.zeros(max_rows, dtype=np.int64)
        self._num_explicit_np = np.zeros(max_rows, dtype=np.int64)
        self._last_needs: tuple[bytes, SamplingNeeds] | None = None  # rows, and what they need

    @property
    def ints(self) -> Tensor:
        """The rows' integers, int64 [max_rows, NUM_INTS]."""
        return self._ints.tensor

    @property
    def floats(self) -> Tensor:
        """The rows' floats, float64 [max_rows, NUM_FLOATS]."""
        return self._floats.tensor

    @property
    def explicit_ids(self) -> Tensor:
        """The explicit ids, int32 [max_rows, MAX_LOGPROB_TOKEN_IDS], padded with -1."""
        return self._explicit.tensor

    def add(
        self,
        row: int,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        prompt_len: int,
        num_tokens: int,
    ) -> None:
        """Stage a request's parameters into a row.

        Args:
            row: the row it will own.
            params: already checked against the vocabulary.
            seed: noise key in [-2^63, 2^63); drawn by the caller if `params.seed` is None.
            choice: which of the request's n choices.
            prompt_len: tokens of the prompt.
            num_tokens: tokens known, those generated before a preemption included; `history`
                must hold them when `flush` is called.
        """
        num_edits = self.edits.add(row, params)
        top_k = params.top_k if params.top_k < self.vocab_size else 0
        flags = _flags(params, top_k, num_edits)
        self._ints.np[row] = (seed, choice, top_k, prompt_len, num_edits, flags)
        self._floats.np[row] = [value(params) for value in _VALUES.values()]
        self._ints.touch(row)
        self._floats.touch(row)
        self._last_needs = None
        self.flags_np[row] = flags
        self._num_top_np[row] = params.logprobs or 0
        explicit = params.logprob_token_ids or ()
        self._num_explicit_np[row] = len(explicit)
        if explicit:
            self._explicit.np[row] = -1
            self._explicit.np[row, : len(explicit)] = explicit
            self._explicit.touch(row)
        if params.penalized:
            self.counts.stage(row, prompt_len=prompt_len, num_tokens=num_tokens)

    def remove(self, row: int) -> None:
        """Forget a row; the next `add` overwrites all of it."""
        self._last_needs = None
        self.flags_np[row] = 0
        self.counts.unstage(row)

    def flush(self, before: Sequence[Writes] = ()) -> None:
        """Publish what was staged, on the current stream, without waiting for the device.

        Args:
            before: what is published first, by the same copy. The history of added rows is among
                it, or was published before.
        """
        writes = [*before, *self.edits.take()]
        for mirror in (self._ints, self._floats, self._explicit):
            writes += mirror.take()
        publish(writes)
        self.counts.flush(self.history)

    def put_masks(self, masks: npt.NDArray[np.int32]) -> None:
        """Write a step's grammar masks into the first slots, on the current stream.

        Args:
            masks: [m, ceil(vocab_size / 32)], as `grammar_masks`. On CUDA they are pinned memory,
                so that nothing waits, and stay as they are until the stream has passed.
        """
        self.grammar_masks[: len(masks)].copy_(torch.from_numpy(masks), non_blocking=True)

    def needs(self, rows_np: npt.NDArray[np.int32]) -> SamplingNeeds:
        """The stages that a batch of these rows needs, from the host's tables alone."""
        rows = rows_np.tobytes()
        if self._last_needs is None or self._last_needs[0] != rows:  # as a rule they go on alike
            self._last_needs = rows, self._needs(rows_np)
        return self._last_needs[1]

    def _needs(self, rows_np: npt.NDArray[np.int32]) -> SamplingNeeds:
        flags = self.flags_np[rows_np]
        num_top = int(self._num_top_np[rows_np].max(initial=0))
        return SamplingNeeds(
            flags=int(np.bitwise_or.reduce(flags, initial=0)),
            greedy=bool((flags & RANDOM == 0).any()),
            num_top=min(rounded_top(num_top), self.vocab_size),
            num_explicit=_bucket(
                int(self._num_explicit_np[rows_np].max(initial=0)), _EXPLICIT_BUCKETS
            ),
        )

    def noise_key(self, rows: Tensor, positions: Tensor) -> NoiseKey:
        """The noise keys of logit rows: `rows` int32 [n], `positions` int64 [n]."""
        ints = self.ints[rows]
        return NoiseKey(ints[:, SEED], positions, ints[:, CHOICE])


def _flags(params: SamplingParams, top_k: int, num_edits: int) -> int:
    """The FLAGS bits of a request; `top_k` is 0 where it keeps the whole vocabulary."""
    filtered = top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
    asked = params.logprobs is not None or params.logprob_token_ids is not None
    reports = asked or params.kept_logprob
    processed = asked and params.logprobs_mode.startswith("processed")
    native = params.seed is not None or processed or params.kept_logprob or params.constrained
    may_use_flashinfer = (top_k > 0 or params.top_p < 1.0) and not native
    flags = sum(bit for bit, is_set in _CHANGES.items() if is_set(params))
    flags |= EDITED * (num_edits > 0) | KEPT * params.kept_logprob
    if not params.greedy:
        flags |= RANDOM | FILTERED * filtered | FLASHINFER * may_use_flashinfer
        flags |= TWICE_FILTERED * (top_k > LARGE_TOP_K and params.top_p < 1.0)
    flags |= LOGPROBS * reports | PROCESSED * processed
    return flags | NORMALIZED * (reports and params.logprobs_mode.endswith("logprobs"))


def rounded_top(num_top: int) -> int:
    """The length of the top lists of a batch that asks for at most `num_top`."""
    return _bucket(num_top, _TOP_BUCKETS)


def _bucket(size: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `size`, powers of two beyond the last."""
    for bucket in buckets:
        if size <= bucket:
            return bucket
    return int(1 << (size - 1).bit_length())
