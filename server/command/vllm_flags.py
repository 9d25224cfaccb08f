"""Flags of vLLM that are no settings here but are accepted where their value changes nothing.

Commands are often pasted. A flag that asks for what the server does anyway, or that steers a part
which does not exist here, is accepted with a note; any other value of it is an error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from server.command.folders import quantization_of_folder

NOTES = "vllm_notes"
"""Where the parser leaves what is to be noted."""

ANY: tuple[str, ...] = ()
SWITCH = None

ACCEPTED: dict[str, tuple[str, ...] | None] = {
    "--pipeline-parallel-size": ("1",),
    "-pp": ("1",),
    "--data-parallel-size": ("1",),
    "-dp": ("1",),
    "--decode-context-parallel-size": ("1",),
    "--num-scheduler-steps": ("1",),
    "--max-num-partial-prefills": ("1",),
    "--distributed-executor-backend": ("mp", "uni"),
    "--task": ("auto", "generate"),
    "--runner": ("auto", "generate"),
    "--convert": ("auto", "none"),
    "--tokenizer-mode": ("auto",),
    "--config-format": ("auto",),
    "--chat-template-content-format": ("auto", "string"),
    "--response-role": ("assistant",),
    "--guided-decoding-backend": ANY,
    "--structured-outputs-config.backend": ANY,
    "--structured-outputs-config.disable_fallback": ANY,
    "--structured-outputs-config.disable_any_whitespace": ("false", "False"),
    "--limit-mm-per-prompt": ANY,
    "--compilation-config": ANY,
    "-O": ANY,
    "--attention-backend": ANY,
    "--attention-config": ANY,
    "--moe-backend": ANY,
    "--performance-mode": ANY,
    "--mm-processor-cache-gb": ANY,
    "--skip-mm-profiling": SWITCH,
    "--language-model-only": SWITCH,
    "--prefix-caching-hash-algo": ANY,
    "--safetensors-load-strategy": ANY,
    "--show-hidden-metrics-for-version": ANY,
    "--enable-mfu-metrics": SWITCH,
    "--kv-cache-metrics": SWITCH,
    "--enable-tokenizer-info-endpoint": SWITCH,
    "--disable-hybrid-kv-cache-manager": SWITCH,
    "--kv-sharing-fast-prefill": SWITCH,
    "--fully-sharded-loras": SWITCH,
    "--lora-dtype": ("auto",),
    "--nnodes": ("1",),
    "--cpu-offload-gb": ("0",),
    "--num-lookahead-slots": ("0",),
    "--max-long-partial-prefills": ("1",),
    "--optimization-level": ANY,
    "--enable-per-request-metrics": SWITCH,
    "--enable-server-load-tracking": SWITCH,
    "--swap-space": ANY,
    "--max-parallel-loading-workers": ANY,
    "--max-seq-len-to-capture": ANY,
    "--max-context-len-to-capture": ANY,
    "--stream-buffer-size": ANY,
    "--enable-auto-tool-choice": SWITCH,
    "--enable-reasoning": SWITCH,
    "--disable-log-requests": SWITCH,
    "--no-enable-log-requests": SWITCH,
    "--disable-log-stats": SWITCH,
    "--disable-frontend-multiprocessing": SWITCH,
    "--disable-custom-all-reduce": SWITCH,
    "--disable-cascade-attn": SWITCH,
    "--use-v2-block-manager": SWITCH,
    "--async-scheduling": SWITCH,
    "--no-async-scheduling": SWITCH,
}
"""The flags and the values that change nothing; any value, or none at all."""

OTHER_NAMES = {"-cc": "--compilation-config"}
STRUCTURED = "--structured-outputs-config"
FIELDS_OF_OURS = {f"{STRUCTURED}.reasoning_parser": "--reasoning-parser"}
"""Fields of vLLM's configs that are flags of our own."""

INSTEAD = {
    "--data-parallel-size": "several engines are started by tailrace deploy --replicas N",
    "-dp": "several engines are started by tailrace deploy --replicas N",
}
"""What does what another value asks for."""
FOLDERS_OWN = frozenset(("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors"))
"""Values of `--quantization` that say how a checkpoint was made, which its folder says too."""


def in_our_words(arguments: Sequence[str]) -> list[str]:
    """Arguments whose flags have dashes for underscores, and one name where vLLM has several.

    A field of a config whose value changes nothing is that config; a config of structured outputs
    that is JSON is its fields.
    """
    found: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            found.append(argument)
            continue
        name, equals, value = _renamed(argument).partition("=")
        if name == STRUCTURED and (equals or rest):
            found += _structured(value if equals else rest.pop(0))
        else:
            found.append(f"{name}{equals}{value}")
    return found


def _renamed(argument: str) -> str:
    """An argument under the name that its flag has here."""
    argument = _with_dashes(argument) if argument.startswith("--") else argument
    name, equals, value = argument.partition("=")
    first, dot, field = name.partition(".")
    first = OTHER_NAMES.get(first, first)
    name = f"{first}{dot}{field}"
    if dot and ACCEPTED.get(first, SWITCH) == ANY:
        name = first
    return f"{FIELDS_OF_OURS.get(name, name)}{equals}{value}"


def _structured(text: str) -> list[str]:
    """The fields of a config that was given as JSON, each as an argument; raises `ConfigError`."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{STRUCTURED} must be JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{STRUCTURED} must be a JSON object, got {text[:64]}")
    found = []
    for field, value in fields.items():
        if value is not None and value != "":
            name = FIELDS_OF_OURS.get(f"{STRUCTURED}.{field}", f"{STRUCTURED}.{field}")
            found.append(f"{name}={value}")
    return found


def _with_dashes(argument: str) -> str:
    name, equals, value = argument.partition("=")
    first, dot, rest = name.partition(".")  # what follows a dot is a field's name
    return f"{first.replace('_', '-')}{dot}{rest}{equals}{value}"


def take_quantization(given: dict[str, Any]) -> None:
    """Accept what the model's folder says itself, and note it; raises `ConfigError` otherwise."""
    method = given.get("quantization")
    if method not in FOLDERS_OWN:
        return
    del given["quantization"]
    own = quantization_of_folder(Path(given.get("model") or given.get("model_flag") or ""))
    if own is not None and own != method.removesuffix("_marlin"):
        raise ConfigError(f"--quantization {method}: the model's config.json says {own}")
    note = f"--quantization {method} changes nothing here: weights are read as they were made"
    given[NOTES] = [*given.get(NOTES, []), note]


class _Note(argparse.Action):
    """Leaves a note on a flag whose value changes nothing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        allowed = ACCEPTED[self.option_strings[0]]
        given = "" if allowed is SWITCH else f" {values}"
        if allowed and values not in allowed:
            one, instead = " or ".join(allowed), INSTEAD.get(self.option_strings[0])
            hint = f"; {instead}" if instead else ""
            raise ConfigError(f"{option_string} must be {one} here, got {str(values)!r}{hint}")
        notes = getattr(namespace, NOTES, [])
        setattr(namespace, NOTES, [*notes, f"{option_string}{given} changes nothing here"])


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """Let the parser take them, without a word in its help."""
    taken = parser._option_string_actions
    for flag, allowed in ACCEPTED.items():
        if flag not in taken:
            parser.add_argument(
                flag,
                action=_Note,
                nargs=0 if allowed is SWITCH else None,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
                dest=NOTES,
            )
