"""Commands that read and change weights, which every rank runs alike, and their answers. No torch.

An update begins, receives tensors by one or several commands, and is finished, which writes all of
them at once, in place. Until then the old weights are as they were. Names of types are torch's
without "torch.".
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from engine.errors import ControlError

WeightTarget = Literal["model", "draft"]
DrafterFate = Literal["keep", "off"]

GROUP_TIMEOUT_S = 60.0
"""Seconds in which a group of processes must have formed."""
PACKED_BYTES, NUM_PACKED = 1 << 30, 2
"""Of a buffer of packed tensors, and how many of them are in turn, as vLLM has them."""


class WeightUpdateError(ControlError):
    """A command that was not followed: the old weights are still served.

    Attributes:
        code: "unknown_weight", "wrong_shape", "wrong_dtype", "not_finite", "no_tensors",
            "no_update", "update_in_progress", "version_backwards", "group_timeout",
            "unknown_group", "bad_source", "fixed_weight" or "no_memory".
    """


class TensorBytes(msgspec.Struct, frozen=True):
    """A tensor; `data` is its numbers, little-endian, the last dimension fastest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class TensorSource(msgspec.Struct, frozen=True, kw_only=True, tag_field="source"):
    """Where tensors come from."""


class FolderSource(TensorSource, tag="folder", frozen=True, kw_only=True):
    """Files of safetensors in a folder: a whole checkpoint, or those that changed."""

    path: str


class GivenSource(TensorSource, tag="given", frozen=True, kw_only=True):
    """The tensors themselves."""

    tensors: tuple[TensorBytes, ...]


class GroupSource(TensorSource, tag="group", frozen=True, kw_only=True):
    """Tensors that rank 0 of a group broadcasts, in this order.

    Attributes:
        packed: many at once as bytes, as vLLM packs them; None is what the group was made with.
    """

    group: str
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    packed: bool | None = None


class BucketSource(TensorSource, tag="bucket", frozen=True, kw_only=True):
    """The same as one tensor of all their bytes, as SGLang's flattened bucket."""

    group: str
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class DescribedSource(TensorSource, tag="described", frozen=True, kw_only=True):
    """Tensors that rank 0 of a group describes before it broadcasts them, as prime-rl does.

    Attributes:
        path: a folder; where it has weights, or there is no such group, they are read from it.
    """

    group: str
    path: str


class IpcSource(TensorSource, tag="ipc", frozen=True, kw_only=True):
    """Tensors of another process of this machine, by pickled handles.

    Attributes:
        handles: pickles, one for all ranks or one each.
        layout: "vllm" has handles by the GPU's id and parameter; the others are SGLang's.
        names, dtypes, shapes, sizes: of what the handles of "vllm" hold, where they do not say.
    """

    handles: tuple[bytes, ...]
    layout: Literal["vllm", "tensors", "flattened_bucket"] = "vllm"
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int, ...] | None = None


AnySource: TypeAlias = (
    FolderSource | GivenSource | GroupSource | BucketSource | DescribedSource | IpcSource
)


class WeightCommand(msgspec.Struct, frozen=True, kw_only=True, tag_field="weights"):
    """A command about weights, run while no step is in flight."""


class BeginUpdate(WeightCommand, tag="begin", frozen=True, kw_only=True):
    """Begin an update.

    Attributes:
        check: refuse tensors with numbers that are not finite.
        takes_parts: what would be an update of its own meanwhile is a part of this one.
    """

    target: WeightTarget = "model"
    check: bool = False
    takes_parts: bool = False


class ReceiveTensors(WeightCommand, tag="receive", frozen=True, kw_only=True):
    """Receive tensors, to be written when the update is finished.

    Attributes:
        is_part: refused, and the update goes on, unless that takes parts.
        version: of the weights from the update's end on, where that names none.
    """

    source: AnySource
    is_part: bool = False
    version: str | None = None


class PassTensors(WeightCommand, tag="pass", frozen=True, kw_only=True):
    """Receive what a trainer broadcasts of tensors that were refused, and drop it.

    Else the next update would take it for its own. Nothing is done for what is not broadcast.
    """

    source: AnySource


class FinishUpdate(WeightCommand, tag="finish", frozen=True, kw_only=True):
    """Write what was received; its reply is an `UpdateReport`.

    Attributes:
        version: of the weights from now on; None is the last that came with tensors, if any, else
            the number of updates. A drafter's update has none.
        drafter: what becomes of a drafter whose weights are not in the update: it goes on with
            those it has, or is off until an update has its weights.
        of_parts: refused, and the update goes on, unless that takes parts; and the other way.
    """

    version: str | None = None
    drafter: DrafterFate = "keep"
    of_parts: bool = False


class AbandonUpdate(WeightCommand, tag="abandon", frozen=True, kw_only=True):
    """Drop what was received."""


class InitGroup(WeightCommand, tag="init_group", frozen=True, kw_only=True):
    """Form a group of processes, of which the trainer is rank 0.

    Attributes:
        rank_offset: of the engine's rank 0 in the group.
        backend: None is NCCL on GPUs and gloo elsewhere.
        unique_id: NCCL's, in place of address and port.
        forms_as: how the trainer forms it: by torch's rendezvous, or on GPUs by NCCL's own
            communicator as vLLM's trainers do.
        packed, buffer_bytes, num_buffers: how tensors are broadcast over it.
    """

    name: str
    world_size: int
    rank_offset: int
    master_address: str = ""
    master_port: int = 0
    backend: str | None = None
    unique_id: bytes | None = None
    packed: bool = False
    buffer_bytes: int = PACKED_BYTES
    num_buffers: int = NUM_PACKED
    timeout_s: float = GROUP_TIMEOUT_S
    forms_as: Literal["torch", "vllm"] = "torch"


class EndGroup(WeightCommand, tag="end_group", frozen=True, kw_only=True):
    """Leave a group."""

    name: str


class ListWeights(WeightCommand, tag="list", frozen=True, kw_only=True):
    """List the weights; the reply is a `WeightList`."""

    checksums: bool = False
    target: WeightTarget = "model"


class ReadWeight(WeightCommand, tag="read", frozen=True, kw_only=True):
    """Read a weight; the reply is a `WeightValues`.

    Attributes:
        truncate: rows at most; None is all.
    """

    name: str
    truncate: int | None = None


class LetWeightsGo(WeightCommand, tag="let_go", frozen=True, kw_only=True):
    """Note that the model's weights are gone, and lacking until updates have written each."""


class SetVersion(WeightCommand, tag="version", frozen=True, kw_only=True):
    """Call the weights by another version."""

    version: str


AnyWeightCommand: TypeAlias = (
    BeginUpdate
    | ReceiveTensors
    | PassTensors
    | FinishUpdate
    | AbandonUpdate
    | InitGroup
    | EndGroup
    | ListWeights
    | ReadWeight
    | LetWeightsGo
    | SetVersion
)


class UpdateReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What an update wrote.

    Attributes:
        num_tensors: that were sent. num_weights: of the model's, which may be joined otherwise.
        num_lacking: weights of the model that were let go, and have not been written since, all of
            each.
        has_draft: weights of the drafter are among them.
        seconds: that it took to receive and to write them, without what came between.
    """

    num_tensors: int
    num_weights: int
    num_bytes: int
    seconds: float
    num_lacking: int = 0
    has_draft: bool = False


class WeightEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A weight as the checkpoint has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    checksum: str | None = None


class WeightList(msgspec.Struct, frozen=True, kw_only=True, tag="list"):
    """The weights, by name."""

    weights: tuple[WeightEntry, ...]


class WeightValues(msgspec.Struct, frozen=True, kw_only=True, tag="values"):
    """The first rows of a weight, row after row; `shape` is of the whole."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: tuple[float, ...]


WeightReply: TypeAlias = UpdateReport | WeightList | WeightValues | None
