"""A chat's body as a conversation and as a `GenerationSpec`."""

from __future__ import annotations

from engine.contracts.info import EngineInfo
from server.conversation.messages import content_text, template_messages
from server.conversation.prompt import ConversationPrompt
from server.conversation.served import ServedChatModel
from server.conversation.spec import ConversationSpec, function_tool, template_options
from server.endpoints.chat.schema import ChatRequest
from server.errors import ClientNames, bad_request
from server.generation.spec import GenerationSpec
from server.generation.translation import Translation, wanted_truncation
from server.schema.messages import ChatMessage
from server.schema.tools import AllowedFunctions, NamedTool, ToolMode
from server.structured.wanted import wanted_grammar


def chat_conversation(body: ChatRequest, info: EngineInfo) -> ConversationSpec:
    """The conversation that a body goes on with; raises `ApiError`."""
    new, old, names = body.max_completion_tokens, body.max_tokens, body.client_names
    if new is not None and old is not None and new != old:
        words = f"must equal max_tokens ({old}) where both are given, got {new}"
        raise names.refuse("max_completion_tokens", words)
    limit = body.token_limit
    older: ToolMode = "none" if body.function_call == "none" else "auto"
    choice, structured = body.tool_choice or older, body.structured_outputs
    mode: ToolMode = "required" if isinstance(choice, NamedTool) else "auto"
    allowed = None
    if isinstance(choice, AllowedFunctions):
        mode = choice.allowed_tools.mode
        allowed = frozenset(tool.function.name for tool in choice.allowed_tools.tools)
    elif isinstance(choice, str):
        mode = choice
    return ConversationSpec(
        names=names,
        model=body.model,
        messages=template_messages(body.messages),
        template=template_options(body),
        tools=[
            function_tool(tool.function, f"tools[{i}].function")
            for i, tool in enumerate(body.tools or ())
        ],
        tool_choice=mode,
        allowed=allowed,
        named_tool=choice.function.name if isinstance(choice, NamedTool) else None,
        one_call=body.parallel_tool_calls is False,
        grammar=wanted_grammar(body.response_format, structured),
        drops_keywords=structured is not None and bool(structured.lenient),
        thinking_budget=body.thinking_token_budget,
        separates_reasoning=body.separate_reasoning is not False,
        generates=limit != 0,
        shows_special=body.skip_special_tokens is False,
        truncation=wanted_truncation(body, reply_tokens=1 if limit is None else limit, info=info),
    )


async def chat_spec(
    body: ChatRequest, prompt: ConversationPrompt, served: ServedChatModel, reply_id: str
) -> GenerationSpec:
    """What a body asks for; raises `ApiError` for what cannot be served.

    Args:
        prompt: of `chat_conversation`.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
    names = body.client_names
    if body.max_tokens is None and body.max_completion_tokens is not None:
        names = ClientNames(names, max_tokens="max_completion_tokens")
    translation = Translation(served=served, names=names, reply_id=reply_id)
    return await translation.spec(
        body,
        model=prompt.model,
        prompts=[prompt.token_ids],
        constraints=prompt.constraints,
        most_tokens=served.info.max_model_len,
        is_parsed=prompt.parsing is not None,
    )


def echoed_text(last: ChatMessage) -> str:
    """What `echo` puts in front of the reply: the last message, if it is an assistant's."""
    return (content_text(last.content) or "") if last.role == "assistant" else ""
