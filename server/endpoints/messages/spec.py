"""A message's body as a conversation and as a `GenerationSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from server.conversation.prompt import ConversationPrompt
from server.conversation.served import ServedChatModel
from server.conversation.spec import (
    ConversationSpec,
    TemplateOptions,
    ToolSpec,
    template_variables,
)
from server.endpoints.messages.schema import (
    ClientTool,
    CountTokensRequest,
    MessagesRequest,
    OutputOptions,
    ThinkingOptions,
)
from server.endpoints.messages.turns import TurnMessages
from server.errors import bad_request
from server.generation.spec import GenerationSpec
from server.generation.translation import Translation
from server.schema.template import thinking_switches
from server.schema.tools import ToolMode
from server.structured.spec import GrammarSpec
from server.structured.wanted import json_answer

_CHOICES: Mapping[str, ToolMode] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def message_conversation(body: CountTokensRequest) -> ConversationSpec:
    """The conversation that a body goes on with; raises `ApiError`."""
    turns = TurnMessages(body.system, body.messages)
    thinking, choice, output = body.thinking, body.tool_choice, body.output_config
    own = _variables(thinking) | (body.chat_template_kwargs or {})
    return ConversationSpec(
        names=body.client_names,
        model=body.model,
        messages=turns.messages,
        template=TemplateOptions(
            variables=template_variables(own, output.effort if output else None),
            add_generation_prompt=not turns.continues,
            continues=turns.continues,
        ),
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())],
        tool_choice=_CHOICES[choice.type] if choice else "auto",
        named_tool=choice.name if choice and choice.type == "tool" else None,
        one_call=bool(choice and choice.disable_parallel_tool_use),
        grammar=_format(output),
        thinking_budget=thinking.budget_tokens if thinking else None,
        generates=not isinstance(body, MessagesRequest) or body.max_tokens > 0,
    )


def _tool(tool: ClientTool, place: str) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=bool(tool.strict),
        place=place,
        schema_place=f"{place}.input_schema",
    )


def _variables(thinking: ThinkingOptions | None) -> dict[str, Any]:
    return {} if thinking is None else thinking_switches(on=thinking.type != "disabled")


def _format(output: OutputOptions | None) -> GrammarSpec | None:
    wanted = output and output.format
    return json_answer(wanted.schema_, "output_config.format.schema") if wanted else None


async def message_spec(
    body: MessagesRequest, prompt: ConversationPrompt, served: ServedChatModel, reply_id: str
) -> GenerationSpec:
    """What a body asks for; raises `ApiError` for what cannot be served.

    Args:
        prompt: of `message_conversation`.
    """
    translation = Translation(served=served, names=body.client_names, reply_id=reply_id)
    params = await translation.params(body, constraints=prompt.constraints)
    form = await translation.form(
        params,
        stream=bool(body.stream),
        is_parsed=prompt.parsing is not None,
        stops=body.stop_sequences,
    )
    return GenerationSpec(
        names=body.client_names,
        reply_id=reply_id,
        model=prompt.model,
        prompts=[prompt.token_ids],
        params=params,
        form=msgspec.structs.replace(form, next_token_only=body.max_tokens == 0),
        max_tokens=body.max_tokens,
        fits_context=True,
        constraints=prompt.constraints,
        priority=body.priority or 0,
    )


def check_not_stored(body: MessagesRequest) -> None:
    """Refuse a conversation that the server is to hold; clients know the code and send it whole."""
    if body.thread is not None:
        raise bad_request(
            "thread",
            "thread must be null: no conversation is stored, so send the whole of it each time",
            "thread_unsupported_request",
        )


def shows_thoughts(thinking: ThinkingOptions | None) -> bool:
    """Whether the reply has thinking blocks: where they were asked for, as Anthropic's has."""
    return thinking is not None and thinking.type != "disabled" and thinking.display != "omitted"
