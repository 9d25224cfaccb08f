"""Tools as clients of `POST /v1/responses` write them, and which of them may be called."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WrapValidator

from server.schema.base import ONE_OF, InnerModel, ReplayedModel, shown
from server.schema.fields import Accepted, Only
from server.schema.tools import (
    MAX_SCHEMA_BYTES,
    MAX_TOOLS,
    ToolFunction,
    ToolMode,
    ToolName,
    distinct,
)

SEARCHES = frozenset(("web_search", "web_search_preview"))
"""Tools that only another server could run, and that a model may do without."""


class FunctionTool(ToolFunction):
    """A function that the model may call, as this route has it: in one object."""

    type: Literal["function"]
    output_schema: Accepted = None
    defer_loading: Annotated[Any, Only(False)] = None
    allowed_callers: Accepted = None
    async_: Annotated[Any, Only(False)] = Field(None, alias="async")


class CustomFormat(ReplayedModel):
    """What the input of a custom tool must be."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = Field(None, max_length=MAX_SCHEMA_BYTES)


def _complete(value: CustomFormat | None) -> CustomFormat | None:
    if value is not None and value.type == "grammar":
        for name in ("syntax", "definition"):
            if getattr(value, name) is None:
                raise ValueError(f"of type grammar needs {name}")
    return value


class CustomTool(ReplayedModel):
    """A tool that is called with a text, which may be held to a grammar."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: Annotated[CustomFormat | None, AfterValidator(_complete)] = None
    defer_loading: Annotated[Any, Only(False)] = None


class SearchTool(ReplayedModel):
    """A tool that is not served: the model is not shown it."""

    type: Literal["web_search", "web_search_preview"]


def _tool(value: Any) -> Any:
    """Refuse a tool of a type that is not served, before its fields are looked at."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in {"function", "custom", *SEARCHES}:
        raise ValueError(
            f"has the type {shown(kind)}, which is not served: types are function, custom"
        )
    return value


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    is_other = isinstance(kind, str) and kind in {"custom", *SEARCHES}
    return f"{ONE_OF}{kind if is_other else 'function'}"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag(f"{ONE_OF}function")]
    | Annotated[CustomTool, Tag(f"{ONE_OF}custom")]
    | Annotated[SearchTool, Tag(f"{ONE_OF}web_search")]
    | Annotated[SearchTool, Tag(f"{ONE_OF}web_search_preview")],
    Discriminator(_tag),
]


def _distinct(tools: list[AnyTool]) -> list[AnyTool]:
    distinct([tool for tool in tools if not isinstance(tool, SearchTool)])
    return tools


ResponseTools = Annotated[
    list[Annotated[AnyTool, BeforeValidator(_tool)]],
    Field(max_length=MAX_TOOLS),
    AfterValidator(_distinct),
]


class FunctionChoice(InnerModel):
    """The tool that must be called."""

    type: Literal["function", "custom"]
    name: str


class AllowedTool(ReplayedModel):
    """The name of a tool."""

    type: Literal["function", "custom"]
    name: str


class AllowedTools(InnerModel):
    """Those of the tools that may be called; the prompt shows all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: list[AllowedTool] = Field(min_length=1, max_length=MAX_TOOLS)


_CHOICES: dict[str, type[FunctionChoice | AllowedTools]] = {
    "function": FunctionChoice,
    "custom": FunctionChoice,
    "allowed_tools": AllowedTools,
}


def _choice(value: Any, _: object) -> str | FunctionChoice | AllowedTools:
    """Read a choice; other words and types are refused in one sentence."""
    if isinstance(value, str) and value in get_args(ToolMode):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and (choice := _CHOICES.get(kind)) is not None:
        return choice.model_validate(value)
    got = shown(kind) if isinstance(value, dict) else shown(value)
    raise ValueError(
        'must be "none", "auto", "required", {"type": "function" or "custom", "name": ...} or '
        '{"type": "allowed_tools", "mode": ..., "tools": [...]}, '
        f"got {'an object of type ' if isinstance(value, dict) else ''}{got}"
    )


ToolChoice = Annotated[ToolMode | FunctionChoice | AllowedTools, WrapValidator(_choice)]
