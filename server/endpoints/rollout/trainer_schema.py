"""What prime-rl's and SkyRL's trainers send. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from engine.contracts.control import MemoryPart
from server.endpoints.rollout.weight_schema import MAX_NAMES, CheckedInfo, Name, Size
from server.schema.base import BodyModel, InnerModel
from server.schema.fields import Accepted, Base64, Only

MAX_FORMING_S = 250.0
"""Seconds in which a group must form, whatever a trainer allows: the engine waits for it."""


class BroadcasterBody(BodyModel):
    """A group in which prime-rl's trainer is rank 0."""

    host: str = Field(max_length=256, description="Of rank 0.")
    port: int = Field(ge=1, le=65535, description="Of rank 0.")
    rank_offset: int = Field(
        ge=0, le=1 << 20, description="This server's first rank among those that do inference."
    )
    inference_world_size: int = Field(
        ge=1, le=1 << 20, description="Ranks that do inference: those of the group but the trainer."
    )
    timeout: float = Field(
        gt=0, description="Seconds in which the group must form; at most 250 are waited for."
    )
    quantize_in_weight_transfer: Annotated[Any, Only(False)] = None
    session_id: Accepted = None


class StartArguments(InnerModel):
    """Arguments of a method that begins or finishes an update."""

    is_checkpoint_format: Annotated[Any, Only(True)] = None


class GroupArguments(InnerModel):
    """Arguments of the method that receives tensors over the group."""

    update_info: CheckedInfo


def _alike(info: SharedBuffer) -> SharedBuffer:
    for name in ("dtype_names", "shapes", "sizes"):
        if (count := len(getattr(info, name))) != len(info.names):
            raise ValueError(f"must have as many {name} as names ({len(info.names)}), got {count}")
    return info


class SharedBuffer(InnerModel):
    """Tensors side by side in one of a GPU."""

    names: list[Name] = Field(max_length=MAX_NAMES)
    dtype_names: list[str] = Field(max_length=MAX_NAMES)
    shapes: list[list[Size]] = Field(max_length=MAX_NAMES)
    sizes: list[Size] = Field(max_length=MAX_NAMES, description="Numbers of each.")
    ipc_handles_pickled: Base64


class SharedArguments(InnerModel):
    """Arguments of the method that receives tensors by a handle."""

    update_info: Annotated[SharedBuffer, AfterValidator(_alike)]


class SleepArguments(InnerModel):
    """Arguments of the method that gives memory back."""

    offload_kv: Accepted = None


class WakeArguments(InnerModel):
    """Arguments of the method that takes memory again."""

    tags: list[MemoryPart]


class RpcBody(BodyModel):
    """A method of vLLM's workers, of which those that SkyRL adds are known."""

    method: Literal[
        "skyrl_start_weight_update",
        "update_weights_nccl",
        "update_weights_ipc",
        "skyrl_finish_weight_update",
        "skyrl_sleep_for_weight_sync",
        "skyrl_wake_for_weight_sync",
    ]
    args: Annotated[Any, Only([])] = None
    kwargs: dict[str, Any] | None = Field(None, description="Arguments of the method, by name.")
    timeout: Accepted = None
