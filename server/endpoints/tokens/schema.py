"""`/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from server.schema.base import BodyModel
from server.schema.fields import MAX_TEXT_CHARS, MAX_TOKENS, ModelName
from server.schema.ids import TokenIdArray
from server.schema.messages import Messages
from server.schema.template import TemplateFields
from server.schema.tools import Tools


class TokenizeRequest(TemplateFields):
    """Turn a text, or a conversation by the chat template, into ids."""

    model: ModelName | None = Field(None, description="One of the names that `/v1/models` lists.")
    prompt: str | None = Field(
        None, max_length=MAX_TEXT_CHARS, description="The text to turn into ids."
    )
    messages: Messages | None = Field(
        None, description="A conversation to turn into ids, instead of a text."
    )
    tools: Tools | None = Field(
        None, description="Tools that the template shows; they need `messages`."
    )
    add_special_tokens: bool | None = Field(
        None, description="The tokenizer adds its beginning of text; the default is true."
    )
    return_token_strs: bool | None = Field(
        None, description="The reply has each id's spelling in the vocabulary too."
    )


class DetokenizeRequest(BodyModel):
    """Turn ids into a text, special tokens included."""

    model: ModelName | None = Field(None, description="One of the names that `/v1/models` lists.")
    tokens: Annotated[TokenIdArray, Field(max_length=MAX_TOKENS)] = Field(
        description="The ids to turn into a text."
    )
