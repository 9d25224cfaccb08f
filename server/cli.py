"""The command `tailrace`: `serve` the API, `verify` the sampler, `warmup` the kernels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, get_origin

from engine.config import ConfigError
from server.command.configure import engine_config
from server.command.settings import ENVIRONMENT_ONLY, PREFIX, Settings, flag_of, load_settings
from server.version import VERSION

EXIT_USAGE, EXIT_FAILURE = 2, 1


class _Parser(argparse.ArgumentParser):
    """One line on an error, instead of the usage and a line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for every field of `Settings`, none of which has a value unless given."""
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, metavar="MODEL")
    for name, field in Settings.model_fields.items():
        if name in ENVIRONMENT_ONLY:
            continue
        words = f"{field.description} [{PREFIX}{name.upper()}]".replace("%", "%%")
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": words}
        if field.annotation is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(field.annotation) is list:
            options |= {"nargs": "+", "action": "extend", "metavar": "VALUE"}
        else:
            options["metavar"] = "VALUE"
        destination = "model_flag" if name == "model" else name
        parser.add_argument(flag_of(name), dest=destination, **options)


def _settings(given: dict[str, Any]) -> Settings:
    if "model_flag" in given:
        flag = given.pop("model_flag")
        if given.setdefault("model", flag) != flag:
            raise ConfigError(f"MODEL and --model differ: {given['model']!r} and {flag!r}")
    return load_settings(given)


def _serve(given: dict[str, Any]) -> int:
    """Serve until told to end."""
    settings = _settings(given)
    from server.command.serve import serve  # slow to import, and not needed to say what is wrong

    return serve(settings)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    words = "End within two minutes on two cores."
    parser.add_argument("--quick", action="store_true", help=words)


def _verify(given: dict[str, Any]) -> int:
    """Check every sampling path as these settings would choose it; 1 if a check fails."""
    quick = given.pop("quick")
    with_model = not {"model", "model_flag"}.isdisjoint(given)
    config = engine_config(_settings(given))
    from engine.startup.self_test import verify

    return verify(config, quick=quick, with_model=with_model, seed=None, out=sys.stdout)


def _add_warmup(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    words = "Only build FlashInfer's modules, for FLASHINFER_CUDA_ARCH_LIST; takes no GPU."
    parser.add_argument("--kernels", action="store_true", help=words)


def _warmup(given: dict[str, Any]) -> int:
    """Build ahead what a server of these settings would build when it starts."""
    kernels = given.pop("kernels")
    config = engine_config(_settings(given))
    from engine.startup.kernel_cache import build_kernels, warm_up

    if kernels:
        build_kernels()
    else:
        warm_up(config)
    return 0


Command = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[dict[str, Any]], int]]

COMMANDS: dict[str, Command] = {
    "serve": ("Serve a model over HTTP.", _add_settings, _serve),
    "verify": ("Test every sampling path on this machine.", _add_verify, _verify),
    "warmup": ("Build kernels ahead of the first start.", _add_warmup, _warmup),
}
"""Name to help, the flags it takes, and what it does with them; it returns the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; whatever the user can mend is one line on standard error."""
    parser = _Parser(prog="tailrace", allow_abbrev=False, description="Exact LLM inference server.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (words, add, _) in COMMANDS.items():
        add(commands.add_parser(name, help=words, description=words, allow_abbrev=False))
    given = vars(parser.parse_args(arguments))
    run = COMMANDS[given.pop("command")][2]
    try:
        return run(given)
    except ConfigError as error:
        sys.stderr.write(f"tailrace: error: {' '.join(str(error).split())}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
