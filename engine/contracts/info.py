"""The description of a started engine."""

from __future__ import annotations

import msgspec

from engine.config import CacheDtype
from engine.contracts.adapters import NamedAdapter


class ErrorStatement(msgspec.Struct, frozen=True, kw_only=True):
    """How far a quantised model is from what it was made of, on a fixed text.

    Attributes:
        scheme: what is rounded, and how.
        reference: what was computed without that rounding.
        mean_kl: mean over the text's positions of KL(reference || served), in nats; None where a
            logit is no number.
        max_logprob_gap: the largest difference between the two logprobs of one token, of all tokens
            at all positions, in nats; None as `mean_kl`.
        text: name of the text, and its length.
    """

    scheme: str
    reference: str
    mean_kl: float | None
    max_logprob_gap: float | None
    text: str


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a started engine, as frontends get it.

    Attributes:
        vocab_size: ids 0 to vocab_size - 1 can be given and drawn.
        max_model_len: prompt and generated tokens together, at most.
        eos_token_ids: end-of-sequence ids of the model's config and generation config.
        max_rows: choices running at once, at most.
        num_blocks, block_size: blocks of the KV cache, and tokens in each.
        num_snapshots: of rows' states; None where no layer keeps a state.
        snapshot_multiple: tokens that the ends of snapshots are multiples of.
        bytes_per_snapshot: on one rank.
        cache_dtype: how the KV cache stores keys and values, as `CacheConfig.dtype`.
        dtype: name of the model's dtype.
        device: name of the device, such as "cpu" or "NVIDIA H200".
        sampler: which path draws rows, in words.
        grammar_error: why no request may have a grammar; None where they may.
        quantization: the statement of error; None where nothing is quantised.
        num_ranks: processes that hold a part of the model each.
        num_routed: experts of a layer, where replies can say which of them tokens took.
        max_drawn_top: top tokens of a drawn token, at most; -1 for no limit but the vocabulary.
        fingerprint: a hash of what decides bits (`engine.startup.fingerprint`); empty where an
            engine was assembled around a model that no folder holds.
        adapters: that there were when it had started; None where none are served.
    """

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    max_rows: int
    num_blocks: int
    block_size: int
    num_snapshots: int | None = None
    snapshot_multiple: int = 1
    bytes_per_snapshot: int = 0
    cache_dtype: CacheDtype = "auto"
    dtype: str
    device: str
    sampler: str = "native"
    grammar_error: str | None = None
    quantization: ErrorStatement | None = None
    num_ranks: int = 1
    num_routed: int | None = None
    max_drawn_top: int = -1
    fingerprint: str = ""
    adapters: tuple[NamedAdapter, ...] | None = None
