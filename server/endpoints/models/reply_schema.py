"""Names of models as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from server.schema.replies import QuantizationReply


class ModelCard(BaseModel):
    """A name the server answers to."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    quantization: QuantizationReply | None = Field(
        description="The statement of error; null where nothing is quantised."
    )
    system_fingerprint: str = Field(
        description="The version and a hash of all that decides the bits of logits and draws."
    )


class ModelList(BaseModel):
    """All names the server answers to."""

    object: Literal["list"]
    data: list[ModelCard]
