"""What trainers send to SGLang's routes about weights and memory. Null means the default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from server.schema.base import BodyModel
from server.schema.fields import Accepted, Base64, NotYet, Only

MAX_NAMES = 1 << 20

Name = Annotated[str, Field(min_length=1, max_length=1024)]
Dtype = Annotated[str, Field(max_length=32)]
Size = Annotated[int, Field(ge=0, le=1 << 40)]
Version = Annotated[str, Field(min_length=1, max_length=256)]
GroupName = Annotated[str, Field(min_length=1, max_length=256)]
Selector = Literal["target", "draft", "all"]

_GROUP = "weight_update_group"


class InitGroupBody(BodyModel):
    """Form a group of processes, in which the trainer is rank 0."""

    master_address: str = Field(max_length=256)
    master_port: int = Field(ge=1, le=65535)
    rank_offset: int = Field(ge=0, le=1 << 20, description="This server's first rank.")
    world_size: int = Field(ge=2, le=1 << 20, description="Processes of the group.")
    group_name: GroupName = _GROUP
    backend: Literal["nccl", "gloo"] = "nccl"


class DestroyGroupBody(BodyModel):
    """Leave a group."""

    group_name: GroupName = _GROUP


class BeginBody(BodyModel):
    """Begin an update of several calls."""

    selector: Selector | None = None


class EndBody(BodyModel):
    """Write what came since the update began."""

    weight_version: Version | None = None


class _WithUpdate(BodyModel):
    """What all updates have."""

    weight_version: Version | None = Field(None, description="What the weights are called.")
    abort_all_requests: bool = Field(False, description="Requests are ended before.")
    flush_cache: bool = Field(
        True,
        description="This has no effect: prefixes of other weights are never found.",
    )
    torch_empty_cache: Accepted = None


class FromDiskBody(_WithUpdate):
    """Update all weights from a folder."""

    model_path: str = Field(max_length=4096, description="On the server's machine.")
    load_format: Literal["auto", "safetensors"] | None = None
    is_async: Accepted = None
    keep_pause: Accepted = None
    recapture_cuda_graph: Accepted = None
    token_step: Accepted = None
    manifest: NotYet = None


class FromDistributedBody(_WithUpdate):
    """Update weights by tensors that rank 0 of a group broadcasts."""

    names: list[Name] = Field(min_length=1, max_length=MAX_NAMES)
    dtypes: list[Dtype] = Field(max_length=MAX_NAMES)
    shapes: list[list[Size]] = Field(max_length=MAX_NAMES)
    group_name: GroupName = _GROUP
    load_format: Literal["flattened_bucket"] | None = None
    selector: Selector | None = None


class FromTensorBody(_WithUpdate):
    """Update weights by pickled handles, one for all ranks or one each."""

    serialized_named_tensors: list[Base64] = Field(min_length=1, max_length=1024)
    load_format: Literal["direct", "flattened_bucket"] | None = None
    selector: Selector | None = None


class GetWeightBody(BodyModel):
    """Which weight to read."""

    name: Name
    truncate_size: int = Field(100, ge=1, le=1 << 20, description="Rows at most.")


class MemoryBody(BodyModel):
    """Parts of the memory; all where none is named."""

    tags: list[Literal["weights", "kv_cache", "cuda_graph"]] | None = Field(
        None, description="`cuda_graph` has no effect: graphs are kept."
    )


class WeightsCheckerBody(BodyModel):
    """Checksums of the weights."""

    action: Literal["checksum"] = "checksum"
    allow_quant_error: Accepted = None
    skip_tensor_list: list[str] | None = Field(
        None, max_length=1024, description="Names that hold one of these are left out."
    )
    selector: Annotated[Any, Only("all", "target")] = None
