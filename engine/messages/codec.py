"""The bytes of what crosses between a frontend and the engine: msgpack, arrays as raw bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from engine.messages.request import FrontendMessage
from engine.messages.step_output import StepOutput


def encode_array(obj: Any) -> Any:
    """An array as what msgpack has words for; raises `NotImplementedError` for anything else."""
    if isinstance(obj, np.ndarray):
        return (obj.dtype.str, obj.shape, np.ascontiguousarray(obj).data)
    raise NotImplementedError(f"cannot encode {type(obj)}")


def decode_array(kind: type, obj: Any) -> Any:
    """The array of `encode_array`, a read-only view of the bytes."""
    dtype, shape, raw = obj
    array = np.frombuffer(raw, dtype=dtype)
    return array if len(shape) == 1 else array.reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)
_message_decoder = msgspec.msgpack.Decoder(FrontendMessage, dec_hook=decode_array)
_output_decoder = msgspec.msgpack.Decoder(StepOutput, dec_hook=decode_array)


def encode(message: FrontendMessage | StepOutput) -> bytes:
    """The bytes of either message."""
    return _encoder.encode(message)


def decode_message(raw: bytes) -> FrontendMessage:
    """The message a frontend sent; raises `msgspec.DecodeError` on anything else."""
    return _message_decoder.decode(raw)


def decode_output(raw: bytes) -> StepOutput:
    """The output the engine sent; its arrays are read-only views of `raw`."""
    return _output_decoder.decode(raw)
