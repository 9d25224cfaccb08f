"""What trainers send to vLLM's routes about weights. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from engine.contracts.weights import GROUP_TIMEOUT_S, NUM_PACKED, PACKED_BYTES
from server.schema.base import BodyModel, InnerModel
from server.schema.fields import Accepted, Base64, Only
from server.schema.query import QueryModel

MAX_NAMES = 1 << 20
MAX_NAME_CHARS = 1024

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Size = Annotated[int, Field(ge=0, le=1 << 40)]
Version = Annotated[str, Field(min_length=1, max_length=256)]
Fate = Literal["keep", "off"] | None
DRAFTER = Field(
    None,
    description="What becomes of a drafter whose weights are not in the update: by default it is "
    "kept as it is and drafts less well; `off` drafts no more until its weights are updated.",
)
GroupName = Annotated[str, Field(min_length=1, max_length=256)]


class InitInfo(InnerModel):
    """A group of processes, in which the trainer is rank 0."""

    master_address: str | None = Field(None, max_length=256, description="Of rank 0.")
    master_port: int | None = Field(None, ge=1, le=65535, description="Of rank 0.")
    nccl_unique_id_b64: Base64 | None = Field(
        None, description="NCCL's id of the group, in place of address and port."
    )
    rank_offset: int = Field(1, ge=0, le=1 << 20, description="This server's first rank.")
    world_size: int = Field(ge=2, le=1 << 20, description="Processes of the group.")
    backend: Literal["nccl", "gloo"] | None = Field(
        None, description="By default NCCL on GPUs, gloo elsewhere."
    )
    packed: bool = Field(False, description="Many tensors are broadcast at once, as bytes.")
    packed_buffer_size_bytes: int = Field(PACKED_BYTES, ge=1, le=1 << 40)
    packed_num_buffers: int = Field(NUM_PACKED, ge=1, le=64)
    timeout_s: float = Field(
        GROUP_TIMEOUT_S, gt=0, le=250, description="Seconds in which the group must form."
    )


class InitBody(BodyModel):
    """How tensors will come; without fields they come by handles, files or in bodies."""

    init_info: InitInfo | dict[str, Any] = Field(description="Of the backend.")


class StartBody(BodyModel):
    """Begin an update."""

    check: bool | None = Field(
        None, description="Tensors with numbers that are not finite are refused."
    )
    is_checkpoint_format: Annotated[Any, Only(True)] = None


class GivenTensor(InnerModel):
    """A tensor in the body."""

    name: Name
    dtype: str = Field(max_length=32, description="Torch's name of its type, such as bfloat16.")
    shape: list[Size] = Field(max_length=16)
    data: Base64 = Field(description="Its numbers, little-endian, in base64.")


def _alike(info: UpdateInfo) -> UpdateInfo:
    """Refuse lists of different lengths, and no source or several."""
    if info.names is not None:
        for name in ("dtype_names", "shapes"):
            own = getattr(info, name)
            if own is None or len(own) != len(info.names):
                raise ValueError(f"must have as many {name} as names ({len(info.names)})")
    sources = [info.path, info.tensors, info.ipc_handles_pickled]
    if sum(source is not None for source in sources) > 1:
        raise ValueError("must have one of path, tensors and ipc_handles_pickled")
    return info


class UpdateInfo(InnerModel):
    """Where tensors come from: the group, by their names, or another of the fields."""

    names: list[Name] | None = Field(None, max_length=MAX_NAMES, description="In their order.")
    dtype_names: list[str] | None = Field(None, max_length=MAX_NAMES)
    shapes: list[list[Size]] | None = Field(None, max_length=MAX_NAMES)
    packed: bool | None = Field(None, description="As in `init_info`, which says the default.")
    packed_buffer_size_bytes: Accepted = None
    packed_num_buffers: Accepted = None
    is_checkpoint_format: Annotated[Any, Only(True)] = None
    path: str | None = Field(
        None, max_length=4096, description="A folder of safetensors on the server's machine."
    )
    tensors: list[GivenTensor] | None = Field(None, max_length=MAX_NAMES)
    ipc_handles_pickled: Base64 | None = Field(
        None, description="Handles of tensors in the memory of a GPU, pickled, in base64."
    )
    tensor_sizes: list[Size] | None = Field(None, max_length=MAX_NAMES)


CheckedInfo = Annotated[UpdateInfo, AfterValidator(_alike)]


class UpdateBody(BodyModel):
    """Tensors of an update; or a folder, which is an update of its own."""

    update_info: CheckedInfo | None = Field(None, description="Where tensors come from.")
    weight_dir: str | None = Field(
        None,
        max_length=4096,
        description="A folder of safetensors: the update is begun and finished with it. Where "
        "it has none and `/init_broadcaster` formed a group, tensors come over that.",
    )
    weight_version: Version | None = Field(
        None, description="What the weights are called, where `/finish_weight_update` says nothing."
    )
    drafter: Fate = DRAFTER
    reset_prefix_cache: Accepted = None


class FinishBody(BodyModel):
    """Write what came."""

    weight_version: Version | None = Field(
        None, description="What the weights are called; by default the number of updates."
    )
    drafter: Fate = DRAFTER


class VersionBody(BodyModel):
    """What the weights are called from now on."""

    new_version: Version


class CheckerBody(BodyModel):
    """Checksums of the weights."""

    action: Literal["checksum", "compare"] = Field(
        description="`checksum` gives them, `compare` the names of those that differ."
    )
    baseline: dict[str, str] | None = Field(None, description="Checksums to compare with.")


class WeightsQuery(QueryModel):
    """What to list."""

    checksums: bool = Field(False, description="The list has checksums too.")
    target: Literal["model", "draft"] = Field("model", description="Whose weights.")
