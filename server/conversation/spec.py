"""A conversation as an endpoint asks for its continuation, in the words of templates and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from server.conversation.template_rendering import Message
from server.errors import ClientNames, bad_request
from server.generation.spec import Truncation
from server.response_store.records import GeneratedRun
from server.schema.template import TemplateFields, thinking_switches
from server.schema.tools import ToolFunction, ToolMode
from server.structured.spec import GrammarSpec


class InputGrammar(msgspec.Struct, frozen=True):
    """What one argument of a tool, a string, is held to.

    Attributes:
        argument: its name.
        place: where in the body the definition is.
    """

    argument: str
    syntax: Literal["lark", "regex"]
    definition: str
    place: str


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool that the model may call.

    Attributes:
        parameters: the JSON schema of its arguments; None for none.
        strict: calls always keep to that schema.
        place: where in the body the tool's fields are.
        schema_place: where `parameters` is.
        input_grammar: of its only argument; None where its schema says all.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool
    place: str
    schema_place: str
    input_grammar: InputGrammar | None = None

    @property
    def for_template(self) -> Mapping[str, Any]:
        """The tool as templates take it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        # Many templates read it of every tool.
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


def function_tool(function: ToolFunction, place: str) -> ToolSpec:
    """A tool in OpenAI's words, whose fields are at `place` in the body."""
    return ToolSpec(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=bool(function.strict),
        place=place,
        schema_place=f"{place}.parameters",
    )


class TemplateOptions(msgspec.Struct, frozen=True):
    """How a chat template is used.

    Attributes:
        source: a template of the request's own, or the name of one of the model's.
        variables: variables that the template may use.
        add_generation_prompt: the prompt ends with the beginning of a reply.
        continues: the reply goes on with the last message.
    """

    source: str | None = None
    variables: Mapping[str, Any] = {}
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continues: bool = False


def template_options(body: TemplateFields) -> TemplateOptions:
    """How a body's fields use the template; raises `ApiError`."""
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise bad_request(
            "continue_final_message",
            "continue_final_message needs add_generation_prompt to be false",
        )
    return TemplateOptions(
        source=body.chat_template,
        variables=template_variables(body.chat_template_kwargs, body.reasoning_effort),
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continues=continues,
    )


def template_variables(own: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """The variables of a template: a request's own, and its effort where these name none.

    The effort "none" asks for no thoughts by their names too.
    """
    variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        variables |= thinking_switches(on=False)
    return variables | dict(own or {})


class ConversationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, and what of its continuation a template, tools and thoughts bear on.

    Attributes:
        names: what the endpoint's clients call these fields, for errors.
        model: the name that the request asks for.
        messages: as templates take them, the role "developer" aside.
        tools: those that the request brings.
        tool_choice: with "none" no tool may be called; with "required" the reply is calls.
        named_tool: the only tool that may be called, once, with "required".
        allowed: names of the tools that may be called; None for all.
        one_call: the reply has at most one call.
        grammar: what the reply is held to besides.
        drops_keywords: keywords of tools' schemas that cannot be kept to are dropped.
        thinking_budget: tokens of thoughts at most; None for no limit.
        separates_reasoning: thoughts are no part of the content.
        generates: a reply is generated, not only the next token's logprobs.
        shows_special: special tokens that are no markers are text.
        truncation: the prompt is cut; None leaves it whole.
        runs: what the model generated in earlier turns, where that is known, oldest first.
    """

    names: ClientNames
    model: str | None
    messages: Sequence[Message]
    template: TemplateOptions = TemplateOptions()
    tools: Sequence[ToolSpec] = ()
    tool_choice: ToolMode = "auto"
    named_tool: str | None = None
    allowed: frozenset[str] | None = None
    one_call: bool = False
    grammar: GrammarSpec | None = None
    drops_keywords: bool = False
    thinking_budget: int | None = None
    separates_reasoning: bool = True
    generates: bool = True
    shows_special: bool = False
    truncation: Truncation | None = None
    runs: Sequence[GeneratedRun] = ()

    @property
    def callable_tools(self) -> Sequence[ToolSpec]:
        """The tools that the model may call."""
        if self.tool_choice == "none":
            return ()
        if self.allowed is None:
            return self.tools
        return [tool for tool in self.tools if tool.name in self.allowed]

    @property
    def max_calls(self) -> int | None:
        """The most calls that a message may have; None for no limit."""
        if self.tool_choice == "none":
            return 0
        return 1 if self.one_call or self.named_tool is not None else None
