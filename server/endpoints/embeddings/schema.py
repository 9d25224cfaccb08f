"""`POST /v1/embeddings` as clients of OpenAI write it, and its reply."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from server.generation.prompt_field import PromptField
from server.schema.base import BodyModel
from server.schema.fields import Accepted, ModelName, NotYet, Only, RequestId


class EmbeddingsRequest(BodyModel):
    """Make a vector of each text."""

    model: ModelName | None = None
    input: PromptField = Field(
        description="A text, a list of token ids, or several of either; each is one vector."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description='With "base64", a vector is its little-endian float32 values.'
    )
    dimensions: int | None = Field(
        None, ge=1, description="The first so many of the model's dimensions, normalized again."
    )
    add_special_tokens: bool | None = Field(
        None, description="The tokenizer adds to texts; the default is true."
    )
    truncate_prompt_tokens: NotYet = None
    embed_dtype: Annotated[Any, Only("float32")] = None
    endianness: Annotated[Any, Only("little", "native")] = None
    normalize: Annotated[Any, Only(True)] = None
    user: Accepted = None
    request_id: RequestId = None


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """Nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(BaseModel):
    """The vectors in the order of the input."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingsUsage
