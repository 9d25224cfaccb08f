"""What rank 0 sends the other ranks: the steps to launch, as bytes. No torch.

A plan names its choices' requests only where they are admitted: the others know from then on which
choice a row holds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.arrays import Int32Array, Int64Array
from engine.config import EngineConfig
from engine.contracts.adapters import AdapterLoad, AdapterSource
from engine.contracts.control import MemoryPart
from engine.contracts.scoring import ScoringPlan
from engine.contracts.weights import AnyWeightCommand
from engine.messages.codec import decode_array, encode_array
from engine.messages.request import Request
from engine.plan import (
    Admission,
    BlockGrant,
    PromptSpan,
    SnapshotGrant,
    StepMasks,
    StepPlan,
)
from engine.rows import BoolArray, Choice


class RankTest(msgspec.Struct, frozen=True):
    """What `tailrace verify` has all ranks do, see `engine.startup.verify.self_test`.

    Attributes:
        quick: make fewer draws. seed: of the counts.
        with_model: serve the model after the checks.
        text: token ids whose logits the model is to compute first; none where it has no reference.
    """

    quick: bool
    seed: int
    with_model: bool
    text: list[int]


class Setup(msgspec.Struct, tag="setup", frozen=True):
    """The first message: who the process is.

    Attributes:
        meeting: the file at which ranks meet.
        self_test: what it does before it serves.
    """

    config: EngineConfig
    rank: int
    meeting: str
    self_test: RankTest | None = None


class RowAdmission(msgspec.Struct, frozen=True):
    """An `Admission` with what a runner needs of its choice."""

    row: int
    num_computed: int
    limit: int
    snapshot: int
    reads_outputs: bool
    request: Request
    index: int
    seed: int
    token_ids: Int32Array


class RowSpan(msgspec.Struct, frozen=True):
    """A `PromptSpan` without its choice."""

    row_idx: int
    first: int
    last: int


class Launch(msgspec.Struct, tag="launch", frozen=True):
    """A `StepPlan` without its choices."""

    rows: Int32Array
    num_query: Int32Array
    starts: Int32Array
    samples: BoolArray
    epochs: Int64Array
    num_prompt_tokens: int
    num_drafts: int
    num_proposed: int
    decodes: BoolArray
    proposes: BoolArray
    constrained: BoolArray
    grants: list[BlockGrant]
    snapshots: list[SnapshotGrant]
    released: list[int]
    outputs: list[Int32Array]
    undrafted: list[int]
    adapters: Int32Array | None
    adapter_loads: list[AdapterLoad]
    admissions: list[RowAdmission]
    spans: list[RowSpan]


class DrawStep(msgspec.Struct, tag="draw", frozen=True):
    """The draw of the step that was launched last, with its masks int32 [count, words]."""

    masks: Int32Array
    slots: Int32Array


class Score(msgspec.Struct, tag="score", frozen=True):
    """A step of scoring."""

    plan: ScoringPlan


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """Rows int32 [n] to vacate at once; see `StartingRunner.forget`."""

    rows: Int32Array


class ReadAdapter(msgspec.Struct, tag="read_adapter", frozen=True):
    """An adapter to read; see `AdapterReader`."""

    number: int
    source: AdapterSource


class DropAdapter(msgspec.Struct, tag="drop_adapter", frozen=True):
    """An adapter that no later step loads."""

    number: int


class FollowWeights(msgspec.Struct, tag="weights", frozen=True):
    """A command about weights, which every rank follows."""

    command: AnyWeightCommand


class GiveBack(msgspec.Struct, tag="give_back", frozen=True):
    """Parts of the memory to give back; see `engine.contracts.runner.Runner.give_back`."""

    parts: list[MemoryPart]
    keeps_weights: bool


class TakeAgain(msgspec.Struct, tag="take_again", frozen=True):
    """Parts of the memory to take again."""

    parts: list[MemoryPart]


Order = (
    Launch
    | DrawStep
    | Score
    | Forget
    | ReadAdapter
    | DropAdapter
    | FollowWeights
    | GiveBack
    | TakeAgain
)
"""What a rank follows once it is set up."""
Message = Setup | Order

_PLAIN = (
    *("rows", "num_query", "starts", "samples", "epochs", "num_prompt_tokens", "num_drafts"),
    *("num_proposed", "decodes", "proposes", "constrained", "grants", "snapshots", "released"),
    *("outputs", "undrafted", "adapters", "adapter_loads"),
)
"""What a plan and its message have alike."""


def _decode_array(kind: type, obj: Any) -> Any:
    return decode_array(kind, obj).copy()  # torch takes only arrays it may write to


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
    Message, dec_hook=_decode_array
)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode(raw: bytes) -> Message:
    """The message of `encode`."""
    return _decoder.decode(raw)


def launch_of(plan: StepPlan) -> Launch:
    """The message of a plan."""
    return Launch(
        **{name: getattr(plan, name) for name in _PLAIN},
        admissions=[
            RowAdmission(
                admission.row,
                admission.num_computed,
                admission.limit,
                admission.snapshot,
                admission.reads_outputs,
                admission.choice.request,
                admission.choice.index,
                admission.choice.seed,
                admission.choice.token_ids,
            )
            for admission in plan.admissions
        ],
        spans=[RowSpan(span.row_idx, span.first, span.last) for span in plan.spans],
    )


def draw_of(masks: StepMasks, buffer: Int32Array) -> DrawStep:
    """The message of a step's masks, which lie first in `buffer`."""
    return DrawStep(buffer[: masks.count], masks.slots)


class PlanReader:
    """Makes plans of messages, on a rank that knows no choices but by their rows."""

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}

    def plan(self, launch: Launch) -> StepPlan:
        """The plan of a message; messages come in order."""
        admissions = [self._admit(admission) for admission in launch.admissions]
        choices = [self._choices[row] for row in launch.rows.tolist()]
        return StepPlan(
            **{name: getattr(launch, name) for name in _PLAIN},
            choices=choices,
            admissions=admissions,
            spans=[
                PromptSpan(span.row_idx, span.first, span.last, choices[span.row_idx])
                for span in launch.spans
            ],
        )

    def _admit(self, admission: RowAdmission) -> Admission:
        choice = Choice(
            frontend=b"",
            request=admission.request,
            index=admission.index,
            seed=admission.seed,
            arrival=0,
            token_ids=admission.token_ids,
        )
        self._choices[admission.row] = choice
        return Admission(
            admission.row,
            choice,
            admission.num_computed,
            admission.limit,
            admission.snapshot,
            admission.reads_outputs,
        )
