"""Replies of SGLang's routes for trainers, as the OpenAPI page describes them."""

from __future__ import annotations

from pydantic import BaseModel, RootModel

from server.schema.replies import ErrorReply


class StatusMessageReply(BaseModel):
    """It was done."""

    message: str
    status: str


class OutcomeReply(BaseModel):
    """Whether it was done, and if not why; a failure is a 400."""

    success: bool
    message: str


class OutcomeRefusalReply(RootModel[OutcomeReply | ErrorReply]):
    """What the engine refused, or what breaks a rule of the body."""


class RankChecksums(BaseModel):
    """The checksum of every weight, by name."""

    checksums: dict[str, str]


class WeightsCheckerReply(OutcomeReply):
    """Checksums of whole weights, whatever the number of ranks."""

    ranks: list[RankChecksums]


class WeightVersionReply(BaseModel):
    """Which weights the engine has."""

    weight_version: str


class ModelInfoReply(BaseModel):
    """What is served."""

    model_path: str
    served_model_name: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: None
    weight_version: str
    has_image_understanding: bool
    has_audio_understanding: bool
