"""The flags of the command line and their help, made of the settings."""

from __future__ import annotations

import argparse
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from server.command.settings import ENVIRONMENT_ONLY, GROUPS, flag_of, nearest, variable_of
from server.command.vllm_flags import add_vllm_flags

EXIT_USAGE = 2
_HELP_WIDTH = 100
_OTHER_NAMES = {
    "tensor_parallel_size": "-tp",
    "batch_invariant": "--enable-deterministic-inference",
}
"""Other names of flags, as vLLM and SGLang have them."""


class Parser(argparse.ArgumentParser):
    """A parser that tells an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """End the process."""
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def help_format(prog: str) -> argparse.HelpFormatter:
    """The layout of the help: the same on every terminal."""
    return argparse.HelpFormatter(prog, max_help_position=34, width=_HELP_WIDTH)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting, in groups; those that are not given leave no value."""
    parser.add_argument(
        *("model",), nargs="?", default=argparse.SUPPRESS, metavar="MODEL", help="See --model."
    )
    for group in GROUPS:
        shown = parser.add_argument_group(group.__dict__["TITLE"])
        for name in group.__annotations__:
            if name in group.model_fields and name not in ENVIRONMENT_ONLY:
                _add_flag(shown, name, group.model_fields[name])
    add_vllm_flags(parser)


def _add_flag(parser: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(name, field)}
    if field.annotation is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif get_origin(field.annotation) is list:
        options |= {"nargs": "+", "action": "extend", "metavar": "VALUE"}
    else:
        options["metavar"] = "VALUE"
    destination = "model_flag" if name == "model" else name
    names = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else []
    parser.add_argument(flag_of(name), *names, dest=destination, **options)


def _help(name: str, field: FieldInfo) -> str:
    """What a setting does, its choices, its default and its variable."""
    words = str(field.description)
    if choices := _choices(field.annotation):
        words += f" One of: {', '.join(choices)}."
    if field.default not in (None, [], ""):
        default = field.default
        if isinstance(default, bool):
            default = "on" if default else "off"
        words += f" Default: {default}."
    return f"{words} [{variable_of(name)}]".replace("%", "%%")


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if get_origin(annotation) in (Union, UnionType):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []


def refuse_unknown(parser: argparse.ArgumentParser, unknown: list[str]) -> None:
    """End with an error that names the flag nearest to the first unknown one."""
    if unknown:
        flag = unknown[0].partition("=")[0]
        shown = parser._option_string_actions.items()
        names = (name for name, action in shown if action.help != argparse.SUPPRESS)
        hint = nearest(flag, (name for name in names if name[:2] == "--"))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
