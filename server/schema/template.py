"""Fields of requests whose conversation is rendered by a chat template."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from server.schema.base import BodyModel

MAX_TEMPLATE_CHARS = 1 << 20
MAX_DOCUMENTS = 8192

Documents = Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS, fail_fast=True)]


def thinking_switches(*, on: bool) -> dict[str, Any]:
    """The variables by which templates of thinking models are asked to think, or not to."""
    return {"enable_thinking": on, "thinking": on}


class TemplateFields(BodyModel):
    """How the conversation becomes a prompt."""

    add_generation_prompt: bool | None = Field(
        None, description="The prompt ends with the beginning of a reply; the default is true."
    )
    continue_final_message: bool | None = Field(
        None,
        description="The reply goes on with the last message; it needs `add_generation_prompt` to "
        "be false.",
    )
    documents: Documents | None = Field(
        None, description="Documents that the template may show, each with a title and a text."
    )
    chat_template: str | None = Field(
        None,
        max_length=MAX_TEMPLATE_CHARS,
        description="The name of one of the model's templates, or, where the server runs with "
        "--trust-request-chat-template, a template of one's own.",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables that the template may use."
    )
    reasoning_effort: str | None = Field(
        None, max_length=64, description="A variable that templates of thinking models use."
    )
