"""Replies of vLLM's routes for trainers, as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class PausedReply(BaseModel):
    """The engine is paused."""

    status: Literal["paused"]
    kept: int = Field(description="Requests that go on at `/resume`.")


class ResumedReply(BaseModel):
    """The pause has ended."""

    status: Literal["resumed", "asleep", "no_weights"] = Field(
        description="`asleep` and `no_weights` hold the engine still: it goes on once it is awake, "
        "or once its weights are written."
    )


class IsPausedReply(BaseModel):
    """Whether the engine is paused."""

    is_paused: bool


class AbortedReply(BaseModel):
    """Requests were ended."""

    status: Literal["aborted"]
    aborted: int


class SuccessReply(BaseModel):
    """Whether it was done."""

    success: bool


class WorldSizeReply(BaseModel):
    """Processes that hold a part of the model each."""

    world_size: int


class DoneReply(BaseModel):
    """It was done."""

    message: str


class OkReply(BaseModel):
    """It was done, as prime-rl says it."""

    status: Literal["ok"]


class RpcReply(BaseModel):
    """What each worker gave."""

    results: list[None]


class VersionSetReply(BaseModel):
    """The weights have another version."""

    success: bool
    message: str
    new_version: str


class LastUpdate(BaseModel):
    """What was written last."""

    num_tensors: int
    num_bytes: int
    seconds: float = Field(
        description="That it took to receive and to write them; no step ran meanwhile."
    )


class WeightInfoReply(BaseModel):
    """Which weights the engine has."""

    weight_version: str
    num_updates: int = Field(description="How often weights were written since the start.")
    last_update: LastUpdate | None
    drafter: Literal["none", "current", "stale", "off"] = Field(
        description="`stale`: the last update had none of its weights; `off`: it does not draft."
    )


class ChecksumsReply(BaseModel):
    """Checksums, or what differs from others."""

    checksums: dict[str, str] | None = None
    match: bool | None = None
    mismatches: list[str] | None = None


class WeightReplyEntry(BaseModel):
    """A weight as the checkpoint has it."""

    name: str
    shape: list[int]
    dtype: str
    checksum: str | None = None


class WeightListReply(BaseModel):
    """The weights."""

    weight_version: str
    weights: list[WeightReplyEntry]


class SleepingReply(BaseModel):
    """Memory was given back."""

    status: Literal["sleeping"]
    level: int


class AwakeReply(BaseModel):
    """Memory was taken again; `sleeping` where some is still missing."""

    status: Literal["awake", "sleeping"]
    tags: list[str] | None


class IsSleepingReply(BaseModel):
    """Whether memory is given back."""

    is_sleeping: bool
    asleep: list[str]
