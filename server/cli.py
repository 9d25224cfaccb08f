"""The command `tailrace`: serve, deploy, verify, audit, bench, compare, conformance and others."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from engine.config import ConfigError, EngineConfig
from server.audit.command import add_audit, run_audit
from server.command.bench_flags import add_bench
from server.command.configure import engine_config
from server.command.deploy import add_deploy, deploy, fleet_options
from server.command.listing import add_models, run_models
from server.command.models import check_models
from server.command.parser import EXIT_USAGE, Parser, add_settings, help_format, refuse_unknown
from server.command.settings import Settings, load_settings
from server.command.vllm_flags import NOTES, in_our_words, take_quantization
from server.compare.command import add_compare, run_compare
from server.conformance.command import add_conformance, run_conformance
from server.version import VERSION

EXIT_FAILURE = 1


def _settings(given: dict[str, Any]) -> Settings:
    """The settings of flags that were given."""
    take_quantization(given)
    for note in given.pop(NOTES, []):
        sys.stderr.write(f"tailrace: note: {note}\n")
    if "model_flag" in given:
        flag = given.pop("model_flag")
        if given.setdefault("model", flag) != flag:
            raise ConfigError(f"MODEL and --model differ: {given['model']!r} and {flag!r}")
    return load_settings(given)


def _config(given: dict[str, Any]) -> EngineConfig:
    """The engine's configuration of flags that were given, whose models are there."""
    return _checked(_settings(given))


def _checked(settings: Settings) -> EngineConfig:
    config = engine_config(settings)
    check_models(config, settings.tokenizer)
    return config


def _serve(given: dict[str, Any]) -> int:
    """Serve until asked to end."""
    settings = _settings(given)
    from server.command.serve import serve  # slow to import, and not needed to say what is wrong

    return serve(settings)


def _deploy(given: dict[str, Any]) -> int:
    """Serve by several engines until asked to end."""
    options = fleet_options(given)
    return deploy(_settings(given), options)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    words = "Run fewer trials, to end within two minutes on two cores."
    parser.add_argument("--quick", action="store_true", help=words)
    words = "Print each check as a JSON object on a line of its own."
    parser.add_argument("--json", action="store_true", help=words)


def _verify(given: dict[str, Any]) -> int:
    """Check every sampling path as these settings would choose it; 1 if a check fails."""
    quick, as_json = given.pop("quick"), given.pop("json")
    names_model = not {"model", "model_flag"}.isdisjoint(given)
    config = _config(given)
    with_model = names_model or config.model.batch_invariant  # whose promise is about a model
    from engine.startup.verify.self_test import run_self_test

    return run_self_test(
        config, quick=quick, with_model=with_model, seed=None, out=sys.stdout, as_json=as_json
    )


def _add_warmup(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    words = (
        "Only build FlashInfer's modules, for the GPUs that FLASHINFER_CUDA_ARCH_LIST names. This "
        "needs no GPU."
    )
    parser.add_argument("--kernels", action="store_true", help=words)
    words = (
        "Write what Triton compiles as a Python project into FOLDER, or add it to the one there: "
        "where that is installed, servers with GPUs of this kind start without compiling."
    )
    parser.add_argument("--pack", metavar="FOLDER", help=words)


def _warmup(given: dict[str, Any]) -> int:
    """Build ahead what a server of these settings would build when it starts."""
    kernels, pack = given.pop("kernels"), given.pop("pack")
    config = _config(given)
    from engine.startup.kernel_cache import build_kernels, fill_kernel_caches, pack_kernels

    if kernels:
        build_kernels()
    elif pack is not None:
        pack_kernels(config, Path(pack), VERSION)
    else:
        fill_kernel_caches(config)
    return 0


def _audit(given: dict[str, Any]) -> int:
    """Derive the tokens of replies again; 1 if one was not drawn, 3 if one could not be audited."""
    own = {name: given.pop(name) for name in ("file", "base_url", "logit_noise", "json")}
    settings = _settings(given)
    return run_audit(own, settings, _checked(settings))


def _health(given: dict[str, Any]) -> int:
    """Ask a server of these settings how it is; 1 where it cannot serve."""
    from server.command.health import health

    return health(_settings(given))


def _bench(given: dict[str, Any]) -> int:
    """Load a server that runs, or compare two results; 1 where a request failed."""
    from server.command.bench import run_bench  # needed for nothing else

    return run_bench(given)


Command = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[dict[str, Any]], int]]

COMMANDS: dict[str, Command] = {
    "serve": ("Serve a model over HTTP.", add_settings, _serve),
    "deploy": ("Serve a model by several engines, on Ray Serve.", add_deploy, _deploy),
    "verify": ("Test every sampling path and a model's logits here.", _add_verify, _verify),
    "audit": ("Derive the tokens of replies again from their seeds.", add_audit, _audit),
    "warmup": ("Build kernels ahead of the first start.", _add_warmup, _warmup),
    "health": ("Ask a server that runs here how it is.", add_settings, _health),
    "conformance": ("Examine any OpenAI-compatible server.", add_conformance, run_conformance),
    "models": ("List the models on our own layers.", add_models, run_models),
    "compare-logprobs": ("Compare a trainer's logprobs with a server's.", add_compare, run_compare),
    "bench": ("Measure any OpenAI-compatible server.", add_bench, _bench),
}
"""Each command by name: its help, what adds its flags, and what runs it and returns the status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; what the user can fix is reported in one line."""
    words = "An OpenAI-compatible inference server that samples exactly."
    parser = Parser(prog="tailrace", allow_abbrev=False, description=words)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers: dict[str, Parser] = {}
    for name, (words, add, _) in COMMANDS.items():
        parsers[name] = commands.add_parser(
            name,
            usage=f"tailrace {name} [MODEL] [FLAGS]",
            help=words,
            description=words,
            allow_abbrev=False,
            formatter_class=help_format,
        )
        add(parsers[name])
    try:
        given_arguments = sys.argv[1:] if arguments is None else arguments
        known, unknown = parser.parse_known_args(in_our_words(given_arguments))
        given = vars(known)
        command = given.pop("command")
        refuse_unknown(parsers[command], unknown)
        return COMMANDS[command][2](given)
    except ConfigError as error:
        sys.stderr.write(f"tailrace: error: {' '.join(str(error).split())}\n")
        return EXIT_USAGE
    except (KeyboardInterrupt, BrokenPipeError):  # or whoever read the output has gone
        return EXIT_FAILURE


def run() -> NoReturn:
    """Run a command as this process: the entry point of `tailrace`.

    The interpreter is not taken down: torch's and Triton's modules would report their own objects
    as leaks, dozens of lines after every end. What it does before that is done in its order: pools
    of processes end theirs with the threads, which other exit functions would wait for in vain.
    """
    _open_standard_files()
    try:
        status = main()
    except SystemExit as end:  # argparse's
        status = end.code if isinstance(end.code, int) else EXIT_FAILURE
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _open_standard_files() -> None:
    """Open what a caller closed (`2>&-`) on nothing: the next file would take its number, and what
    is written to it end up there."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    run()
