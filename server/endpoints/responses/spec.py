"""A response's body as a conversation and as a `GenerationSpec`."""

from __future__ import annotations

from server.conversation.prompt import ConversationPrompt
from server.conversation.served import ServedChatModel
from server.conversation.spec import (
    ConversationSpec,
    TemplateOptions,
    function_tool,
    template_variables,
)
from server.endpoints.responses.custom import custom_tool
from server.endpoints.responses.history import History
from server.endpoints.responses.items import input_messages
from server.endpoints.responses.schema import LOGPROBS, ResponsesRequest, TextOptions
from server.endpoints.responses.tools_schema import (
    AllowedTools,
    CustomTool,
    FunctionChoice,
    SearchTool,
)
from server.generation.spec import GenerationSpec
from server.generation.translation import Translation
from server.schema.tools import ToolMode
from server.structured.spec import GrammarSpec
from server.structured.wanted import json_answer


def response_conversation(body: ResponsesRequest, history: History) -> ConversationSpec:
    """The conversation that a body goes on with; raises `ApiError`."""
    choice, effort = body.tool_choice or "auto", body.reasoning.effort if body.reasoning else None
    mode: ToolMode = "required" if isinstance(choice, FunctionChoice) else "auto"
    allowed = None
    if isinstance(choice, AllowedTools):
        mode, allowed = choice.mode, frozenset(tool.name for tool in choice.tools)
    elif isinstance(choice, str):
        mode = choice
    return ConversationSpec(
        names=body.client_names,
        model=body.model,
        messages=input_messages(body.instructions, history.items, history.num_past),
        template=TemplateOptions(variables=template_variables(body.chat_template_kwargs, effort)),
        tools=[
            custom_tool(tool, f"tools[{i}]")
            if isinstance(tool, CustomTool)
            else function_tool(tool, f"tools[{i}]")
            for i, tool in enumerate(body.tools or ())
            if not isinstance(tool, SearchTool)
        ],
        tool_choice=mode,
        allowed=allowed,
        named_tool=choice.name if isinstance(choice, FunctionChoice) else None,
        one_call=body.parallel_tool_calls is False,
        grammar=_format(body.text),
        runs=history.runs,
    )


def _format(text: TextOptions | None) -> GrammarSpec | None:
    wanted = text and text.format
    if not wanted or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return json_answer({"type": "object"}, "text.format")
    return json_answer(wanted.schema_, "text.format.schema")


async def response_spec(
    body: ResponsesRequest, prompt: ConversationPrompt, served: ServedChatModel, reply_id: str
) -> GenerationSpec:
    """What a body asks for; raises `ApiError` for what cannot be served.

    Args:
        prompt: of `response_conversation`.
    """
    shows_logprobs = LOGPROBS in (body.include or ()) or body.top_logprobs
    translation = Translation(served=served, names=body.client_names, reply_id=reply_id)
    params = await translation.params(
        body,
        logprobs=(body.top_logprobs or 0) if shows_logprobs else None,
        constraints=prompt.constraints,
    )
    is_parsed = prompt.parsing is not None
    return GenerationSpec(
        names=body.client_names,
        reply_id=reply_id,
        model=prompt.model,
        prompts=[prompt.token_ids],
        params=params,
        form=await translation.form(params, stream=bool(body.stream), is_parsed=is_parsed),
        max_tokens=body.max_output_tokens or served.info.max_model_len,
        fits_context=True,
        constraints=prompt.constraints,
        priority=body.priority or 0,
    )
