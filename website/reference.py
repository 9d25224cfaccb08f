"""Pages that are made of the code: flags, fields, errors and metrics.

They are written when the site is built, so that they cannot fall behind.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from msgspec import structs

from engine.client import EngineHandle
from engine.contracts.info import EngineInfo
from engine.stats import DraftStats, GrammarStats
from server.command.parser import Parser, add_settings
from server.command.settings import ENVIRONMENT_ONLY, Settings, variable_of
from server.command.vllm_flags import ACCEPTED, SWITCH
from server.engine_metrics import NO_STATS
from server.fronts import FrontTable
from server.metrics import Metrics

ROOT = Path(__file__).parent.parent
_Schema = dict[str, Any]
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "minLength": "characters at least",
    "maxLength": "characters at most",
    "minItems": "items at least",
    "maxItems": "items at most",
}


def pages() -> dict[str, str]:
    """The pages of the reference, by their paths in the site."""
    return {
        "reference/flags.md": flags(),
        "reference/fields.md": fields(),
        "reference/errors.md": errors(),
        "reference/metrics.md": metrics(),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def flags() -> str:
    """Every flag of `tailrace serve`, in the groups of its help."""
    parser = Parser(prog="tailrace serve", add_help=False)
    add_settings(parser)
    parts = [
        "# Flags",
        "Flags of `tailrace serve`. Each also reads the environment: `--max-model-len` is "
        "`TAILRACE_MAX_MODEL_LEN`.",
    ]
    for group in parser._action_groups:
        rows = [
            [_flag(action), action.help.replace("%%", "%").rpartition(" [")[0]]
            for action in group._group_actions
            if action.option_strings and action.help and action.help != argparse.SUPPRESS
        ]
        if rows:
            title = group.title or ""
            parts += [f"## {title[:1].upper()}{title[1:]}", table(("flag", "what it does"), rows)]
    parts += [
        "## Variables without a flag",
        table(("variable", "what it does"), map(_variable, sorted(ENVIRONMENT_ONLY))),
        "## Flags of vLLM that change nothing",
        "They are accepted with a note where their value is one of these.",
        table(("flag", "values"), ([f"`{name}`", _values(name)] for name in ACCEPTED)),
    ]
    return "\n\n".join(parts) + "\n"


def _variable(name: str) -> list[str]:
    return [f"`{variable_of(name)}`", Settings.model_fields[name].description or ""]


def _flag(action: argparse.Action) -> str:
    return ", ".join(f"`{option}`" for option in action.option_strings)


def _values(flag: str) -> str:
    values = ACCEPTED[flag]
    if values is SWITCH:
        return "none"
    return ", ".join(f"`{value}`" for value in values) or "any"


def fields() -> str:
    """The fields of every request and reply, of the description that the server gives of itself."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    schemas: dict[str, _Schema] = document["components"]["schemas"]
    parts = ["# Fields", "What requests and replies hold. `/docs` of a server shows the same."]
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            names = [f"[{name}](#{name.lower()})" for name in _names(about)]
            words = about.get("description", "").strip()
            parts += [f"## {method.upper()} {path}", f"{words} {', '.join(names)}".strip()]
    for name, schema in schemas.items():
        parts += [f"## {name}", schema.get("description", "").strip()]
        required = schema.get("required", [])
        rows = [
            [f"`{field}`" + (" *" if field in required else ""), _kind(own), _words(own)]
            for field, own in schema.get("properties", {}).items()
        ]
        if rows:
            parts.append(table(("field", "type", "meaning"), rows))
    parts.append("Fields marked * must be given, or are always there.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _names(schema: Any) -> list[str]:
    """The schemas that a part of the document refers to, each once."""
    text = json.dumps(schema)
    found = text.split('"#/components/schemas/')[1:]
    return list(dict.fromkeys(name.partition('"')[0] for name in found))


def _kind(schema: _Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            kinds = [_kind(each) for each in schema[several] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    return str(schema.get("type", "any"))


def _words(schema: _Schema) -> str:
    parts = [schema, *schema.get("anyOf", ())]
    bounds = [
        f"{words} {part[name]:,}"
        for part in parts
        for name, words in _BOUNDS.items()
        if name in part
    ]
    told = schema.get("description", "")
    if schema.get("default") is not None:
        bounds.append(f"default {json.dumps(schema['default'])}")
    return f"{told} {'; '.join(bounds)}".strip()


def errors() -> str:
    """Every code of an error that the server's code can give."""
    found: dict[tuple[int, str], str] = {}
    for path in sorted((ROOT / "server").rglob("*.py")):
        for status, code, message in _errors_of(ast.parse(path.read_text())):
            found[status, code] = max(found.get((status, code), ""), message, key=len)
    rows = [
        [str(status), f"`{code}`", message] for (status, code), message in sorted(found.items())
    ]
    words = (
        "Codes of errors, `error.code` of a reply; `…` stands for what differs. Errors without a "
        "code are told by their status, and `error.param` names the field. See "
        "[serving](../serving.md) for the limits."
    )
    return (
        f"# Errors\n\n{words}\n\n{table(('status', 'code', 'an example of what is said'), rows)}\n"
    )


def _errors_of(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Status, code and message of the errors that a module makes with a code of its own."""
    said: dict[str, ast.expr] = {}
    for node in _in_order(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            said[node.targets[0].id] = node.value
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        named = {word.arg: word.value for word in node.keywords}
        if node.func.id == "ApiError" and len(node.args) >= 2:
            status, message, code = node.args[0], node.args[1], named.get("code")
        elif node.func.id == "bad_request" and len(node.args) >= 3:
            status, message, code = ast.Constant(400), node.args[1], node.args[2]
        else:
            continue
        if isinstance(status, ast.Constant) and isinstance(code, ast.Constant) and code.value:
            yield int(cast(int, status.value)), str(code.value), _said(message, said)


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes as they are read, from top to bottom."""
    for node in ast.iter_child_nodes(tree):
        yield node
        yield from _in_order(node)


def _said(message: ast.expr, assigned: dict[str, ast.expr]) -> str:
    """What a message says, by the last words that were given its name."""
    if isinstance(message, ast.Name) and message.id in assigned:
        message = assigned[message.id]
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in message.values
        )
    return "…"


def metrics() -> str:
    """Every metric, of a server whose engine speculates and follows grammars."""
    registry = Metrics("model", _engine(), FrontTable()).registry
    rows = []
    for family in sorted(registry.collect(), key=lambda family: family.name):
        labels = {name for sample in family.samples for name in sample.labels}
        own = ", ".join(f"`{name}`" for name in sorted(labels - {"model_name", "engine", "le"}))
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append([f"`{name}`", family.type, family.documentation, own])
    words = "What `/metrics` shows. Those of the server itself have `model_name` and `engine` too."
    heads = ("metric", "type", "meaning", "labels")
    return f"# Metrics\n\n{words}\n\n{table(heads, rows)}\n"


def _engine() -> EngineHandle:
    """As much of an engine as metrics ask of."""
    drafts = DraftStats(num_drafts=0, num_draft_tokens=0, accepted_at=(0,))
    stats = structs.replace(
        NO_STATS, drafts=drafts, grammars=GrammarStats(), sampler_rows={"native": 0}
    )
    info = EngineInfo(
        vocab_size=1,
        max_model_len=1,
        eos_token_ids=(),
        max_rows=1,
        num_blocks=2,
        block_size=1,
        dtype="float32",
        device="cpu",
    )
    return cast(EngineHandle, SimpleNamespace(info=info, stats=stats, failure=lambda: None))
