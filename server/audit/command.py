"""`tailrace audit`: from flags to a table or JSON."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import orjson

from engine.audit.drawn import DrawnChoice, LogitSource
from engine.config import EngineConfig
from sampling.params import ParameterError
from server.audit.parameters import Served
from server.audit.records import read_choices
from server.audit.report import conclusion, document, header, line, status
from server.audit.server_logits import ServerLogits, adapters_of
from server.audit.verdict import Finding, Noise, allowed_noise, judge
from server.command.configure import server_config
from server.command.parser import add_settings
from server.command.settings import Settings
from server.generation.masks import bad_words
from server.remote import Remote
from server.text.tokenizer import Tokenizer, load_tokenizer


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `audit`: the file, where logits come from, and those of the model."""
    parser.usage = "tailrace audit FILE [MODEL] [FLAGS]"
    words = 'Requests and their replies, a JSON object with "request" and "response" a line.'
    parser.add_argument("file", type=Path, metavar="FILE", help=words)
    words = "Ask this server for logits, which needs --max-logprobs -1; else the model is loaded."
    parser.add_argument("--base-url", metavar="URL", help=words)
    words = (
        "Largest error of a logit that may explain a token, in nats; by default that of the dtype."
    )
    parser.add_argument("--logit-noise", type=_noise, metavar="NATS", help=words)
    words = "Print the report as JSON."
    parser.add_argument("--json", action="store_true", help=words)
    add_settings(parser)


def _noise(word: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(word)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"must be a number, 0 or more, got {word}")


def run_audit(given: dict[str, Any], settings: Settings, config: EngineConfig) -> int:
    """Derive every token of a file again; returns the exit status of `report.status`."""
    remote = _remote(given["base_url"], settings)
    choices = list(read_choices(given["file"], _served(settings, config, remote)))
    source, where = _source(remote, config)
    noise = allowed_noise(given["logit_noise"], source.dtype)
    as_json = given["json"]
    if not as_json:
        print(f"tailrace audit: {where}, {source.dtype}, logits off by up to {noise:g} nats")
        print(header(), flush=True)
    verdicts, known = [], set[Noise]()
    for choice in choices:
        refusal = choice.refusal or _stranger(choice, source)
        if refusal is not None:
            verdict = Finding(line=choice.line, index=choice.index, refusal=refusal)
        else:
            verdict = _judged(choice, source, noise, known)
        verdicts.append(verdict)
        if not as_json:
            print(line(verdict), flush=True)
    if as_json:
        sys.stdout.write(orjson.dumps(document(verdicts, where, noise)).decode() + "\n")
    else:
        print(conclusion(verdicts, where, noise))
    return status(verdicts)


def _judged(choice: DrawnChoice, source: LogitSource, noise: float, known: set[Noise]) -> Finding:
    from engine.audit.redraw import redraw  # imports torch

    try:
        tokens = redraw(choice, source)
    except ValueError as error:
        return Finding(line=choice.line, index=choice.index, refusal=str(error))
    return judge(choice, tokens, noise, known)


def _stranger(choice: DrawnChoice, source: LogitSource) -> str | None:
    """Why a choice cannot be drawn again: it has other ids than the model, or more of them."""
    try:
        choice.params.check_vocab(source.vocab_size)
    except ParameterError as error:
        return str(error)
    count, most = len(choice.prompt) + len(choice.output), source.max_model_len
    if count > most:
        return f"it has {count} tokens with its prompt, and --max-model-len is {most}"
    reported = (token for row in choice.logprobs or () for token, _ in row)
    for token in itertools.chain(choice.prompt, choice.output, reported):
        if not 0 <= token < source.vocab_size:
            return f"it has the token id {token}, and the model has ids below {source.vocab_size}"
    return None


def _served(settings: Settings, config: EngineConfig, remote: Remote | None) -> Served:
    """What the flags say of the server, as for `tailrace serve`, and what a running one says."""
    from engine.models.expected import eos_token_ids  # imports torch

    @functools.cache
    def tokenizer() -> Tokenizer:
        own = config.structured
        assert own is not None, "settings name a tokenizer"
        return load_tokenizer(
            own.tokenizer, revision=own.revision, trust_remote_code=own.trust_remote_code
        )

    speculation = config.speculation
    keeps_draws, at_rates = None, False
    if speculation is not None:
        keeps_draws = speculation.keeps_draws
        at_rates = speculation.rejection_sample_method == "synthetic"
    adapters = {name for name, _ in config.adapters.modules} if config.adapters else set[str]()
    return Served(
        config=server_config(settings, config),
        eos_token_ids=eos_token_ids(config.model),
        words=lambda words: bad_words(words, tokenizer()),
        keeps_draws=keeps_draws,
        accepts_at_rates=at_rates,
        adapters=frozenset(adapters | (set() if remote is None else adapters_of(remote))),
    )


def _remote(base_url: str | None, settings: Settings) -> Remote | None:
    if base_url is None:
        return None
    key = settings.api_key[0] if settings.api_key else os.environ.get("OPENAI_API_KEY") or None
    return Remote(base_url, key=key)


def _source(remote: Remote | None, config: EngineConfig) -> tuple[LogitSource, str]:
    """Where logits come from, and its name."""
    if remote is not None:
        return ServerLogits(remote, None), remote.url
    from engine.audit.engine_logits import EngineLogits  # imports torch

    return EngineLogits(config), config.model.model
