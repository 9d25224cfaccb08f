"""Weights of a small model that commands write."""

from __future__ import annotations

import torch

from engine.contracts.model import CausalLM
from engine.contracts.named_weights import NamedWeights
from engine.contracts.weights import (
    BeginUpdate,
    FinishUpdate,
    GivenSource,
    ReceiveTensors,
    TensorBytes,
    UpdateReport,
    WeightTarget,
)
from engine.weights.commands import RankWeights
from sampling.device.ranks import LoneRank, RankExchange
from tests.engine.models.rewriting import (
    Tensors,
)

CPU = torch.device("cpu")


def room_of(model: CausalLM, exchange: RankExchange | None = None) -> RankWeights:
    return RankWeights(model.named_weights(), NamedWeights(), CPU, exchange or LoneRank())


def given(tensors: Tensors) -> ReceiveTensors:
    return ReceiveTensors(
        source=GivenSource(
            tensors=tuple(
                TensorBytes(
                    name,
                    str(tensor.dtype).removeprefix("torch."),
                    tuple(tensor.shape),
                    tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
                )
                for name, tensor in tensors.items()
            )
        )
    )


def update(
    room: RankWeights,
    *received: ReceiveTensors,
    check: bool = False,
    target: WeightTarget = "model",
) -> UpdateReport:
    room.run(BeginUpdate(check=check, target=target))
    for command in received:
        room.run(command)
    report = room.run(FinishUpdate())
    assert isinstance(report, UpdateReport)
    return report
