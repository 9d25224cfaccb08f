"""What an engine says of itself, for tests of messages and clients."""

from __future__ import annotations

from engine.contracts.info import EngineInfo

INFO = EngineInfo(
    vocab_size=9,
    max_model_len=64,
    eos_token_ids=(0,),
    max_rows=4,
    num_blocks=10,
    block_size=16,
    dtype="float32",
    device="cpu",
)
