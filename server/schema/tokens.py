"""`/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from server.schema.base import WireModel
from server.schema.fields import MAX_TEXT_CHARS, MAX_TOKENS, ModelName, NotYet
from server.schema.ids import TokenIdArray


class TokenizeRequest(WireModel):
    """Turn a text into ids."""

    model: ModelName | None = Field(None, description="A name of `/v1/models`.")
    prompt: str = Field(max_length=MAX_TEXT_CHARS, description="The text.")
    add_special_tokens: bool | None = Field(
        None, description="Let the tokenizer add its beginning of text; true by default."
    )
    return_token_strs: bool | None = Field(None, description="Return each id's text too.")
    messages: NotYet = None


class DetokenizeRequest(WireModel):
    """Turn ids into a text, special tokens included."""

    model: ModelName | None = Field(None, description="A name of `/v1/models`.")
    tokens: Annotated[TokenIdArray, Field(max_length=MAX_TOKENS)] = Field(description="The ids.")
