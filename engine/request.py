"""What crosses between a frontend and the engine: requests in, one `StepOutput` a step out.

Both directions are one message type each, encoded with msgpack; arrays travel as raw bytes.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.stats import EngineStats
from sampling.params import LogprobsMode, SamplingParams

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]


class Finish(enum.IntEnum):
    """Why a choice ended; RUNNING while it has not."""

    RUNNING = 0
    STOP = 1
    """An id of `stop_token_ids` was drawn."""
    LENGTH = 2
    """`max_tokens` or the context length was reached."""
    ABORT = 3
    """The frontend aborted it (a disconnect, or a stop string it saw)."""
    NAN = 4
    """The model's logits had NaN, +Inf or no finite value."""
    ERROR = 5
    """The step failed; `StepOutput.errors` says why."""


class PromptLogprobsParams(msgspec.Struct, frozen=True, kw_only=True):
    """Which prompt positions are scored.

    Attributes:
        start: first prompt position reported, at least 1 (position 0 follows nothing).
        num_top: number of top tokens per position.
        token_ids: explicit ids per position, duplicates kept.
        mode: which values are reported.
    """

    start: int = 1
    num_top: int = 0
    token_ids: tuple[int, ...] = ()
    mode: LogprobsMode = "raw_logprobs"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt with `n` choices.

    Attributes:
        handle: the frontend's number for it; unique among the frontend's unfinished requests.
            Client-given request ids never reach the engine.
        prompt_token_ids: int32 [prompt_len], not empty.
        params: how tokens are drawn; the same for every choice.
        n: number of choices; each becomes a row.
        max_tokens: tokens generated at most, at least 1.
        priority: lower runs earlier; equal ones in order of arrival.
        emit_interval: report to the frontend every so many tokens (and at the end); 1 streams.
        prompt_logprobs: scores of the prompt's own tokens, reported once, by choice 0.
        cache_salt: enters the prefix hashes, so that only equal salts share blocks.
    """

    handle: int
    prompt_token_ids: Int32Array
    params: SamplingParams
    n: int = 1
    max_tokens: int
    priority: int = 0
    emit_interval: int = 1
    prompt_logprobs: PromptLogprobsParams | None = None
    cache_salt: str = ""


class ScoringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A query with items after it, some positions of which are read. Nothing is generated.

    Attributes:
        handle: as `Request.handle`, of the same numbers.
        query_token_ids: int32 [Q]; may be empty.
        item_token_ids: int32 [item_lens.sum()], item after item.
        item_lens: int32 [N], each at least 1.
        num_read: int32 [N], how many of an item's last positions are read; the sum is at least 1
            and an item's at most its length.
        id_lists: int32 [M, J], ids whose logprobs are read, padded with -1. The lists take turns:
            the request's p-th read position, items in order, reads list p % M.
        priority: as `Request.priority`.
    """

    handle: int
    query_token_ids: Int32Array
    item_token_ids: Int32Array
    item_lens: Int32Array
    num_read: Int32Array
    id_lists: Int32Array
    priority: int = 0


class FrontendMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The only message a frontend sends.

    Attributes:
        submit: new requests, in order.
        score: new scoring requests, in order.
        abort: (handle, choice) pairs; choice -1 means all of the request's.
    """

    submit: list[Request] = []
    score: list[ScoringRequest] = []
    abort: list[tuple[int, int]] = []


class LogprobArrays(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs of T positions; rows that asked for fewer tops or ids read the first of them.

    Attributes:
        chosen: float32 [T], the chosen token's value.
        ranks: int32 [T], 1 for the highest.
        top_ids: int32 [T, K], best first.
        top_logprobs: float32 [T, K].
        explicit: float32 [T, J], values of the request's explicit ids, in its order.
    """

    chosen: Float32Array
    ranks: Int32Array
    top_ids: Int32Array
    top_logprobs: Float32Array
    explicit: Float32Array


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt logprobs of one request, complete: positions start .. prompt_len - 1."""

    handle: int
    start: int
    logprobs: LogprobArrays


class ItemScores(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a scoring request: P positions were read, or none where it failed.

    Attributes:
        finish: LENGTH where all went well.
        num_cached: tokens of the query served from the prefix cache.
        values: float32 [P, J], raw logprobs of the position's ids; undefined at padding.
        others: float32 [P], log of the mass of all other ids.
        error: the message of `Finish.ERROR`.
    """

    handle: int
    finish: Finish
    num_cached: int
    values: Float32Array
    others: Float32Array
    error: str | None = None


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one step has to say to one frontend: E entries, T tokens in all.

    Attributes:
        handles: int64 [E], the request of each entry.
        choices: int32 [E], the choice of each entry.
        num_new: int32 [E], tokens of the entry, 0 or more; they sum to T.
        finish: uint8 [E], `Finish` codes. Each choice ends with exactly one non-zero code.
        num_cached: int32 [E], prompt tokens served from the prefix cache.
        token_ids: int32 [T], entry after entry. A stop token is included.
        logprobs: of the T tokens, where any entry asked for them; entries that did not
            hold undefined values.
        prompt_logprobs: of the requests whose prompt was finished by this step.
        item_scores: of scoring requests that ended.
        errors: handle -> message for entries ended with `Finish.ERROR`.
        drafts: int64 [E, 2 + k], what became of the drafts of each entry's choice so far: as
            `DraftStats`, whose fields it holds in order; None without a drafter.
        stats: the engine's gauges and counters.
    """

    handles: Int64Array
    choices: Int32Array
    num_new: Int32Array
    finish: UInt8Array
    num_cached: Int32Array
    token_ids: Int32Array
    logprobs: LogprobArrays | None = None
    prompt_logprobs: list[PromptLogprobs] = []
    item_scores: list[ItemScores] = []
    errors: dict[int, str] = {}
    drafts: Int64Array | None = None
    stats: EngineStats


def _encode_array(obj: Any) -> Any:
    if isinstance(obj, np.ndarray):
        return (obj.dtype.str, obj.shape, np.ascontiguousarray(obj).data)
    raise NotImplementedError(f"cannot encode {type(obj)}")


def _decode_array(kind: type, obj: Any) -> Any:
    dtype, shape, raw = obj
    return np.frombuffer(raw, dtype=np.dtype(dtype)).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_message_decoder = msgspec.msgpack.Decoder(FrontendMessage, dec_hook=_decode_array)
_output_decoder = msgspec.msgpack.Decoder(StepOutput, dec_hook=_decode_array)


def encode(message: FrontendMessage | StepOutput) -> bytes:
    """Encode either message for the wire."""
    return _encoder.encode(message)


def decode_message(raw: bytes) -> FrontendMessage:
    """Decode what a frontend sent; raises `msgspec.DecodeError` on anything else."""
    return _message_decoder.decode(raw)


def decode_output(raw: bytes) -> StepOutput:
    """Decode what the engine sent; arrays are read-only views of `raw`."""
    return _output_decoder.decode(raw)
