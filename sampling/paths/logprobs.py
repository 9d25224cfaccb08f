"""Logprobs of chosen tokens, with their ranks, the top tokens and explicit ids.

The value reported for token i in a row with values x is float32(x_i - offset), subtracted in
float64 and rounded once. The offset is the log-sum-exp of the row, or 0 in the logits modes.
Every number of a row comes from that one expression, so the chosen value is bit-equal to its
entry in the top list and in the explicit list. -inf stays -inf.

The order is the sampler's: higher value first, then lower id. A token's rank is one plus the
number of tokens before it, so the greedy token has rank 1.

Letters in shapes: N rows, K top tokens, J explicit ids, T tiles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampling.batch import LogprobsOutput
from sampling.kernels import logprobs as logprob_kernels
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import MAX_TOP
from sampling.kernels.race import pick
from sampling.kernels.tile_pass import tile_pass
from sampling.race import log_sum_exp, tile_masses
from sampling.rows import LOGPROBS, NORMALIZED, NUM_FLOATS, NUM_INTS
from sampling.triton_support import HAS_TRITON

CHUNK = 64
"""Ids whose maximum stands for them while the top tokens are searched."""
_RANK_BLOCK = 1 << 18  # elements compared at a time, so that they stay in the cache
_LAST_ID = 2**31 - 1


def gather_logprobs(
    values: Tensor,
    offsets: Tensor,
    token_ids: Tensor,
    *,
    num_top: int,
    explicit_ids: Tensor | None = None,
) -> LogprobsOutput:
    """Report the chosen tokens, their ranks, the top lists and the explicit ids of N rows.

    Args:
        values: float32, bfloat16 or float16 [N, width], what each row reports; any row stride.
        offsets: float64 [N], subtracted from it.
        token_ids: int32 or int64 [N], the chosen tokens.
        num_top: K; cut to the width.
        explicit_ids: int32 or int64 [N, J]; entries outside [0, width) are answered -inf.

    Returns:
        `LogprobsOutput` with K = min(num_top, width), and J = 0 without explicit ids. Rows with
        NaN give some ids in range and undefined numbers.
    """
    values = values.float()
    chosen_ids = token_ids.long().clamp(0, values.shape[1] - 1)[:, None]
    top_ids = _top_ids(values, min(num_top, values.shape[1]))
    ids = [chosen_ids, top_ids] + ([] if explicit_ids is None else [explicit_ids.long()])
    reported = _reported(values, torch.cat(ids, dim=1), offsets)
    first_explicit = 1 + top_ids.shape[1]
    return LogprobsOutput(
        chosen=reported[:, 0],
        ranks=_ranks(values, chosen_ids),
        top_ids=top_ids.int(),
        top_logprobs=reported[:, 1:first_explicit],
        explicit=reported[:, first_explicit:],
        kept=torch.zeros_like(reported[:, 0]),
    )


def prompt_logprobs(
    logits: Tensor,
    target_ids: Tensor,
    *,
    num_top: int = 0,
    explicit_ids: Tensor | None = None,
    normalized: bool = True,
) -> LogprobsOutput:
    """Report the prompt token that follows each position, from unprocessed logits.

    Args:
        logits: [N, width], the model's at N positions.
        target_ids: int32 or int64 [N], the tokens that follow.
        num_top: K.
        explicit_ids: int32 or int64 [J] for all positions alike, or [N, J].
        normalized: report logprobs, else logits.
    """
    if explicit_ids is not None:
        explicit_ids = explicit_ids.expand(len(logits), -1)
    if logits.is_cuda and HAS_TRITON and num_top <= MAX_TOP:
        return prompt_kernels(logits, target_ids, num_top, explicit_ids, normalized)
    logits = logits.float()
    offsets = _offsets(logits) if normalized else logits.new_zeros(len(logits)).double()
    return gather_logprobs(logits, offsets, target_ids, num_top=num_top, explicit_ids=explicit_ids)


def listed_logprobs(logits: Tensor, id_lists: Tensor) -> tuple[Tensor, Tensor]:
    """The logprobs of listed ids, and the logprob of all other ids together.

    The mass of the others is summed without the listed ones, not taken as a difference, so it is
    as exact where next to nothing is left.

    Args:
        logits: float32 [N, vocab_size]; overwritten.
        id_lists: int32 [N, J], different ids of each row; -1 pads.

    Returns:
        float32 [N, J], undefined at padding, and float32 [N], -inf where nothing is left; NaN in
        rows that hold NaN, +inf or no finite logit.
    """
    ids = torch.where(id_lists < 0, id_lists[:, :1], id_lists).long()
    offsets = _offsets(logits)
    bad = ~offsets.isfinite()
    values = _reported(logits, ids, offsets).masked_fill_(bad[:, None], torch.nan)
    others = _offsets(logits.scatter_(1, ids, -torch.inf)) - offsets
    return values, others.float().masked_fill_(bad, torch.nan)


def _offsets(logits: Tensor) -> Tensor:
    """The log-sum-exp of rows float32 [N, vocab_size] as every path computes it, float64 [N]."""
    if logits.is_cuda and HAS_TRITON:
        source = _plain_source(logits, LOGPROBS | NORMALIZED)
        stats = tile_pass(source, edited=False, peaked=False, reported=True)
        return pick(source, stats, None, edited=False, reported=True).offsets
    neutral = torch.ones_like(logits[:, 0], dtype=torch.float64)
    return log_sum_exp(tile_masses(logits, neutral), neutral)


def prompt_kernels(
    logits: Tensor,
    target_ids: Tensor,
    num_top: int,
    explicit_ids: Tensor | None,
    normalized: bool,
) -> LogprobsOutput:
    """`prompt_logprobs` by the kernels that serve decoding, so that values are bit-equal."""
    flags = LOGPROBS | NORMALIZED * normalized
    source = _plain_source(logits, flags)
    stats = tile_pass(source, edited=False, peaked=False, reported=True)
    picked = pick(source, stats, None, edited=False, reported=True)
    return logprob_kernels.gather_logprobs(
        source,
        stats,
        None,
        picked.offsets,
        picked.kept,
        target_ids,
        num_top=num_top,
        explicit_ids=explicit_ids,
        edited=False,
    )


def _plain_source(logits: Tensor, flags: int) -> Source:
    """A kernel's source for greedy rows that nothing processes; they share row 0 of new tables."""
    n, width = logits.shape
    zeros = torch.zeros(n, dtype=torch.int64, device=logits.device)
    return Source(
        logits=logits,
        logits_stride=logits.stride(0),
        vocab_size=width,
        rows=zeros.int(),
        positions=zeros,
        # Every column holds the flags: those of a greedy row are the only ones read.
        ints=torch.full((1, NUM_INTS), flags, dtype=torch.int64, device=logits.device),
        floats=torch.zeros((1, NUM_FLOATS), dtype=torch.float64, device=logits.device),
        edit_table=zeros,
        edit_bias=zeros,
        edit_start=zeros,
        edit_words=zeros,
        allowed=zeros,
        counts=zeros,
        history=zeros,
        history_stride=0,
        depths=None,
        grammar_masks=zeros,
        mask_slots=None,
    )


def _reported(values: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    """The values to report for `ids` [N, M], float32(x - offset); -inf for ids outside the row."""
    last = values.shape[1] - 1
    x = values.gather(1, ids.clamp(0, last))
    x = torch.where((ids < 0) | (ids > last), -torch.inf, x)
    # A row that is all -inf has the offset -inf, and -inf - -inf would be NaN.
    return torch.where(x == -torch.inf, x, (x.double() - offsets[:, None]).float())


def _ranks(values: Tensor, ids: Tensor) -> Tensor:
    """The ranks of the tokens `ids` [N, 1], int32 [N]."""
    rows = max(1, _RANK_BLOCK // values.shape[1])
    blocks = [slice(first, first + rows) for first in range(0, len(values), rows)]
    return torch.cat([_block_ranks(values[block], ids[block]) for block in blocks])


def _block_ranks(values: Tensor, ids: Tensor) -> Tensor:
    """`_ranks` of a few rows."""
    chosen = values.gather(1, ids)
    found = torch.empty_like(values)  # comparisons vectorise into float32, not into booleans
    before = torch.gt(values, chosen, out=found).sum(1)  # exact: a row has fewer than 2^24
    equal = torch.eq(values, chosen, out=found).sum(1)
    if (equal > 1).any():
        found *= torch.arange(values.shape[1], device=values.device) < ids
        before += found.sum(1)
    return before.int() + 1


def _top_ids(values: Tensor, k: int) -> Tensor:
    """The ids of the first k tokens of each row, int64 [N, k], best first.

    The k first tokens lie in the k first chunks, chunks being ordered by their maximum, then by
    their number: a token of any other chunk comes after the maximum of each of those k.
    """
    n, width = values.shape
    if k == 0:
        return torch.empty((n, 0), dtype=torch.int64, device=values.device)
    num_whole = width // CHUNK
    whole = values[:, : num_whole * CHUNK].view(n, num_whole, CHUNK)
    maxima = whole.amax(2)
    if width % CHUNK:
        maxima = torch.cat((maxima, values[:, num_whole * CHUNK :].amax(1, keepdim=True)), dim=1)
    chunks = _first(_order_keys(maxima, torch.arange(maxima.shape[1], device=values.device)), k)
    ids = chunks[:, :, None] * CHUNK + torch.arange(CHUNK, device=values.device)
    ids = ids.flatten(1)
    keys = _order_keys(values.gather(1, ids.clamp(max=width - 1)), ids)
    return _first(keys.masked_fill_(ids >= width, torch.iinfo(torch.int64).min), k)


def _order_keys(values: Tensor, ids: Tensor) -> Tensor:
    """int64 keys, larger for a higher float32 value, then a lower id; NaN comes first or last."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0: the two zeros are equal values
    ordered = bits ^ (bits >> 31 & 0x7FFFFFFF)
    return (ordered.long() << 32) + (_LAST_ID - ids)


def _first(keys: Tensor, k: int) -> Tensor:
    """The ids of the largest of keys [N, M], largest first, int64 [N, min(k, M)]."""
    top = keys.topk(min(k, keys.shape[1]), dim=1).values
    return _LAST_ID - (top & 0xFFFFFFFF)
