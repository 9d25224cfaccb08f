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
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sampling.batch import LogprobsOutput
from sampling.device.triton_support import HAS_TRITON
from sampling.kernels import logprobs as logprob_kernels
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import MAX_TOP
from sampling.kernels.race import pick
from sampling.kernels.tile_pass import TileStats, tile_pass_for
from sampling.race import all_masses, log_sum_exp, tile_masses
from sampling.rows import LOGPROBS, NORMALIZED, NUM_FLOATS, NUM_INTS, SamplingNeeds
from sampling.sharded.tiles import whole_tiles
from sampling.vocab_shard import VocabShard

CHUNK = 64
"""Ids whose maximum represents them while the top tokens are searched."""
_RANK_BLOCK = 1 << 18  # elements compared at a time, so that they stay in the cache
_LAST_ID = 2**31 - 1


def gather_logprobs(
    values: Tensor,
    offsets: Tensor,
    token_ids: Tensor,
    *,
    num_top: int,
    explicit_ids: Tensor | None = None,
    shard: VocabShard | None = None,
) -> LogprobsOutput:
    """Report the chosen tokens, their ranks, the top lists and the explicit ids of N rows.

    Args:
        values: float32, bfloat16 or float16 [N, width], what each row reports; any row stride.
        offsets: float64 [N], subtracted from it.
        token_ids: int32 or int64 [N], the chosen tokens.
        num_top: K; cut to the vocabulary.
        explicit_ids: int32 or int64 [N, J]; entries outside the vocabulary are answered -inf.
        shard: the ids of the values; None is all of the vocabulary.

    Returns:
        `LogprobsOutput` with K = min(num_top, vocab_size), and J = 0 without explicit ids. Rows
        with NaN give some ids in range and undefined numbers.
    """
    shard = shard or VocabShard.whole(values.shape[1])
    values = values.float()
    chosen_ids = token_ids.long().clamp(0, shard.vocab_size - 1)[:, None]
    top_ids = first_ids(values, min(num_top, shard.vocab_size), shard)
    ids = [chosen_ids, top_ids] + ([] if explicit_ids is None else [explicit_ids.long()])
    found = values_of(values, torch.cat(ids, dim=1), shard)
    reported = less_offsets(found, offsets)
    first_explicit = 1 + top_ids.shape[1]
    return LogprobsOutput(
        chosen=reported[:, 0],
        ranks=1 + shard.total(_num_before(values, chosen_ids, found[:, :1], shard)),
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
    shard: VocabShard | None = None,
) -> LogprobsOutput:
    """Report the prompt token that follows each position, from unprocessed logits.

    Args:
        logits: [N, width], the model's at N positions, those of the shard.
        target_ids: int32 or int64 [N], the tokens that follow.
        num_top: K.
        explicit_ids: int32 or int64 [J] for all positions alike, or [N, J].
        normalized: report logprobs, else logits.
        shard: which ids they are; None is all of the vocabulary.
    """
    if explicit_ids is not None:
        explicit_ids = explicit_ids.expand(len(logits), -1)
    shard = shard or VocabShard.whole(logits.shape[1])
    if logits.is_cuda and HAS_TRITON and num_top <= MAX_TOP:
        return prompt_kernels(logits, target_ids, num_top, explicit_ids, normalized, shard)
    logits = logits[:, : shard.width].float()
    offsets = offsets_of(logits, shard) if normalized else logits.new_zeros(len(logits)).double()
    return gather_logprobs(
        logits, offsets, target_ids, num_top=num_top, explicit_ids=explicit_ids, shard=shard
    )


def offsets_of(logits: Tensor, shard: VocabShard) -> Tensor:
    """The log-sum-exp of rows float32 [N, width] as every path computes it, float64 [N]."""
    if logits.is_cuda and HAS_TRITON:
        source, stats = _plain_tiles(logits, LOGPROBS | NORMALIZED, shard)
        return pick(source, stats, None, edited=False, reported=True).offsets
    neutral = torch.ones_like(logits[:, 0], dtype=torch.float64)
    return log_sum_exp(all_masses(tile_masses(logits, neutral), shard), neutral)


def prompt_kernels(
    logits: Tensor,
    target_ids: Tensor,
    num_top: int,
    explicit_ids: Tensor | None,
    normalized: bool,
    shard: VocabShard | None = None,
) -> LogprobsOutput:
    """`prompt_logprobs` by the kernels that serve decoding, so that values are bit-equal."""
    shard = shard or VocabShard.whole(logits.shape[1])
    source, stats = _plain_tiles(logits, LOGPROBS | NORMALIZED * normalized, shard)
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
        shard=shard,
    )


def _plain_tiles(logits: Tensor, flags: int, shard: VocabShard) -> tuple[Source, TileStats]:
    """The source of rows [n, width] that nothing processes, and the statistics of all tiles."""
    source = plain_source(logits, flags, shard)
    needs = SamplingNeeds(flags, greedy=True, num_top=0, num_explicit=0)
    if shard.is_whole:
        return source, tile_pass_for(source, needs)
    return source, whole_tiles(source, needs, shard)


def plain_source(logits: Tensor, flags: int, shard: VocabShard) -> Source:
    """A kernel's source for greedy rows that nothing processes; they share row 0 of new tables."""
    n = len(logits)
    zeros = torch.zeros(n, dtype=torch.int64, device=logits.device)
    return Source(
        logits=logits,
        logits_stride=logits.stride(0),
        vocab_size=shard.vocab_size,
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
        first_tile=None if shard.is_whole else shard.first_tile,
        end_id=None if shard.is_whole else shard.first + shard.width,
    )


def values_of(values: Tensor, ids: Tensor, shard: VocabShard) -> Tensor:
    """The values of `ids` [N, M], each from its rank; -inf for ids outside the vocabulary."""
    x = shard.of_owners(values.gather(1, shard.columns(ids)[0]), ids)
    return torch.where((ids < 0) | (ids >= shard.vocab_size), -torch.inf, x)


def less_offsets(x: Tensor, offsets: Tensor) -> Tensor:
    """The values to report for x [N, M], float32(x - offset)."""
    # A row that is all -inf has the offset -inf, and -inf - -inf would be NaN.
    return torch.where(x == -torch.inf, x, (x.double() - offsets[:, None]).float())


def _num_before(values: Tensor, ids: Tensor, chosen: Tensor, shard: VocabShard) -> Tensor:
    """How many of the shard's tokens come before `ids` [N, 1] of values `chosen`; int32 [N]."""
    rows = max(1, _RANK_BLOCK // values.shape[1])
    blocks = [slice(first, first + rows) for first in range(0, len(values), rows)]
    return torch.cat([_block_before(values[b], ids[b], chosen[b], shard) for b in blocks])


def _block_before(values: Tensor, ids: Tensor, chosen: Tensor, shard: VocabShard) -> Tensor:
    """`_num_before` of a few rows."""
    found = torch.empty_like(values)  # comparisons vectorise into float32, not into booleans
    before = torch.gt(values, chosen, out=found).sum(1)  # exact: a row has fewer than 2^24
    equal = torch.eq(values, chosen, out=found).sum(1)
    if (equal > shard.columns(ids)[1][:, 0]).any():  # others than the chosen token itself
        found *= shard.token_ids().to(ids.device) < ids
        before += found.sum(1)
    return before.int()


def first_ids(values: Tensor, k: int, shard: VocabShard) -> Tensor:
    """The ids of the first k tokens of each row, int64 [N, k], best first, of all ranks' lists."""
    if k == 0:
        return torch.empty((len(values), 0), dtype=torch.int64, device=values.device)
    own = _top_keys(values, min(k, shard.width), shard.first)
    own = F.pad(own, (0, k - own.shape[1]), value=torch.iinfo(torch.int64).min)
    return _ids(_first(shard.exchange.all_gather(own).transpose(0, 1).flatten(1), k))


def _top_keys(values: Tensor, k: int, first_id: int) -> Tensor:
    """The order keys of the first k tokens of each row, int64 [N, k], best first.

    The k first tokens lie in the k first chunks, chunks being ordered by their maximum, then by
    their number: a token of any other chunk comes after the maximum of each of those k.
    """
    n, width = values.shape
    num_whole = width // CHUNK
    whole = values[:, : num_whole * CHUNK].view(n, num_whole, CHUNK)
    maxima = whole.amax(2)
    if width % CHUNK:
        maxima = torch.cat((maxima, values[:, num_whole * CHUNK :].amax(1, keepdim=True)), dim=1)
    numbers = torch.arange(maxima.shape[1], device=values.device)
    chunks = _ids(_first(_order_keys(maxima, numbers), k))
    ids = chunks[:, :, None] * CHUNK + torch.arange(CHUNK, device=values.device)
    ids = ids.flatten(1)
    keys = _order_keys(values.gather(1, ids.clamp(max=width - 1)), ids + first_id)
    return _first(keys.masked_fill_(ids >= width, torch.iinfo(torch.int64).min), k)


def _order_keys(values: Tensor, ids: Tensor) -> Tensor:
    """int64 keys, larger for a higher float32 value, then a lower id; NaN comes first or last."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0: the two zeros are equal values
    ordered = bits ^ (bits >> 31 & 0x7FFFFFFF)
    return (ordered.long() << 32) + (_LAST_ID - ids)


def _first(keys: Tensor, k: int) -> Tensor:
    """The largest of keys [N, M], largest first, int64 [N, min(k, M)]."""
    return keys.topk(min(k, keys.shape[1]), dim=1).values


def _ids(keys: Tensor) -> Tensor:
    """The ids in order keys."""
    return _LAST_ID - (keys & 0xFFFFFFFF)
