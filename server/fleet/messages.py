"""What crosses between a server and its replicas, as bytes: requests, outputs, reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from engine.contracts.adapters import AdapterSource, NamedAdapter
from engine.contracts.info import EngineInfo
from engine.messages.codec import decode_array, encode_array
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import ChoiceRoutes, ItemScores, PromptLogprobs, StepOutput
from engine.stats import EngineStats
from engine.submission import Entry

Stamp = tuple[int, str]
"""When a change was asked for, in nanoseconds since 1970, and the server that was asked."""


class FleetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request on its way to a replica; one of the two is there.

    Attributes:
        key: names it among all requests of all servers.
        model: the identity of the model that the server prepared it for.
        adapter_stamp: the change by which its adapter got its name; None for no adapter.
    """

    key: str
    model: str
    adapter_stamp: Stamp | None = None
    generate: Request | None = None
    score: ScoringRequest | None = None


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a replica about a request.

    Attributes:
        replica: its name.
        refusal: why it does not work at the request; None where it does.
    """

    replica: str
    refusal: str | None = None


class AdapterChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a name of an adapter stands for from some time on.

    Attributes:
        stamp: the later one of two changes holds.
        source: of the adapter; None where the name stands for nothing.
        is_whole: tensors that were given are in the source, not at a replica alone.
    """

    name: str
    stamp: Stamp
    source: AdapterSource | None
    is_whole: bool = True

    def light(self) -> AdapterChange:
        """The change without tensors that were given."""
        if self.source is None or not self.source.is_given:
            return self
        source = AdapterSource(self.source.path, self.source.config)
        return msgspec.structs.replace(self, source=source, is_whole=False)


class AdapterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica made of a change.

    Attributes:
        error, code: why it did not follow; None where it did, or a later change came before.
        adapters: that requests can name there now.
    """

    replica: str
    error: str | None
    code: str | None
    adapters: tuple[NamedAdapter, ...]


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replica.

    Attributes:
        replica: its name.
        model: the identity of its model.
        model_name: the model's folder or hub id, for people.
        stats: its engine's statistics; None before the first step.
        adapters: that requests can name there.
        changes: of adapters that it has followed, as of `AdapterChange.light`.
        refused: changes that it did not follow, likewise.
    """

    replica: str
    model: str
    model_name: str
    info: EngineInfo
    stats: EngineStats | None
    adapters: tuple[NamedAdapter, ...] = ()
    changes: tuple[AdapterChange, ...] = ()
    refused: tuple[AdapterChange, ...] = ()


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)
_requests = msgspec.msgpack.Decoder(FleetRequest, dec_hook=decode_array)
_outputs = msgspec.msgpack.Decoder(list[StepOutput], dec_hook=decode_array)
_greetings = msgspec.msgpack.Decoder(Greeting)
_reports = msgspec.msgpack.Decoder(ReplicaReport)
_changes = msgspec.msgpack.Decoder(AdapterChange)
_answers = msgspec.msgpack.Decoder(AdapterAnswer)

_Message = FleetRequest | Greeting | ReplicaReport | AdapterChange | AdapterAnswer


def encode_message(message: _Message | list[StepOutput]) -> bytes:
    """The bytes of any message."""
    return _encoder.encode(message)


def decode_request(raw: bytes) -> FleetRequest:
    """The request that a server sent."""
    return _requests.decode(raw)


def decode_greeting(raw: bytes) -> Greeting:
    """A replica's first message about a request."""
    return _greetings.decode(raw)


def decode_outputs(raw: bytes) -> list[StepOutput]:
    """A replica's further messages about a request."""
    return _outputs.decode(raw)


def decode_report(raw: bytes) -> ReplicaReport:
    """The state of a replica."""
    return _reports.decode(raw)


def decode_change(raw: bytes) -> AdapterChange:
    """A change of an adapter's name."""
    return _changes.decode(raw)


def decode_answer(raw: bytes) -> AdapterAnswer:
    """What a replica made of a change."""
    return _answers.decode(raw)


def entry_output(
    entry: Entry,
    handle: int,
    prompt_parts: Sequence[PromptLogprobs] = (),
    routes: ChoiceRoutes | None = None,
) -> StepOutput:
    """An output of one entry alone, addressed to the handle that the server knows it by.

    `prompt_parts` is what is reported of the prompt before it, `routes` what its choice took.
    """
    output, own = entry.output, slice(entry.entry_idx, entry.entry_idx + 1)
    return StepOutput(
        handles=np.array([handle]),
        choices=output.choices[own],
        num_new=output.num_new[own],
        finish=output.finish[own],
        num_cached=output.num_cached[own],
        token_ids=entry.token_ids,
        logprobs=entry.logprobs,
        origins=entry.origins,
        prompt_logprobs=[msgspec.structs.replace(each, handle=handle) for each in prompt_parts],
        routes=[] if routes is None else [msgspec.structs.replace(routes, handle=handle)],
        errors={} if entry.error is None else {handle: entry.error},
        drafts=None if output.drafts is None else output.drafts[own],
        times=None if output.times is None else output.times[own],
        weight_version=output.weight_version,
        weight_tag=output.weight_tag,
    )


def scores_output(scores: ItemScores, handle: int) -> StepOutput:
    """An output of a scoring request's end alone."""
    none: Any = np.zeros(0, dtype=np.int32)
    return StepOutput(
        handles=none.astype(np.int64),
        choices=none,
        num_new=none,
        finish=none.astype(np.uint8),
        num_cached=none,
        token_ids=none,
        item_scores=[msgspec.structs.replace(scores, handle=handle)],
    )
