"""The flags of `tailrace bench`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from server.bench.workloads import NAMES
from server.command.parser import Parser, help_format

COMPARE = "compare"


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `bench`, and `bench compare`."""
    parser.usage = f"tailrace bench [FLAGS]\n       tailrace bench {COMPARE} A.json B.json"
    where = parser.add_argument_group("The server")
    _flag(where, "--base-url", "http://127.0.0.1:8000", "Its URL, with /v1 at the end or without.")
    _flag(where, "--model", None, "The model to ask for; the server's first by default.")
    _flag(where, "--api-key", None, "Its key. [OPENAI_API_KEY]")
    words = "Take certificates that cannot be checked."
    where.add_argument("--insecure", action="store_true", help=words)
    words = "Fields to leave out of bodies, for a server that refuses them."
    _flag(where, "--omit-fields", "", words, metavar="NAME,NAME")

    words = "Send words in place of token ids, to a server that takes only texts as prompts."
    where.add_argument("--text-prompts", action="store_true", help=words)

    what = parser.add_argument_group("The load")
    words = f"What to send, of: {', '.join(NAMES)}."
    _flag(what, "--workloads", "single,stream", words, metavar="NAME,NAME")
    words = "Requests under way at once; each workload is measured at each number."
    _flag(what, "--concurrency", "1024", words, metavar="N,N")
    _flag(
        what, "--rate", 50.0, "Requests a second of `poisson` and `stream-beside`.", type=_positive
    )
    _flag(what, "--repeat", 2, "Passes, each on fresh prompts; the best counts.", type=_count)
    _flag(what, "--num-requests", None, "In place of each workload's own number.", type=_count)
    _flag(what, "--input-tokens", None, "In place of each workload's own lengths.", type=_count)
    _flag(what, "--output-tokens", None, "In place of each workload's own lengths.", type=_count)
    words = "Ids of prompts are below it; every usual model's vocabulary is larger."
    _flag(what, "--vocab-size", 8000, words, type=_count)
    words = "Another one is other prompts, which a server that was measured before has not cached."
    _flag(what, "--seed", 1, words, type=int)
    _flag(what, "--timeout", 900.0, "Longest wait for a reply, in seconds.", type=_positive)
    words = "Client processes; by default as many as cores, at most 4."
    _flag(what, "--processes", min(4, os.cpu_count() or 1), words, type=_count)

    kept = parser.add_argument_group("What is kept")
    _flag(kept, "--output", None, "Write the results as JSON.", type=Path, metavar="FILE")
    _flag(kept, "--html", None, "Write a report with plots.", type=Path, metavar="FILE")
    _add_compare(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", prog="tailrace bench", metavar=COMPARE, parser_class=Parser
    )
    words = "Compare the JSON of two runs: B over A, and what their passes do not explain."
    compared = actions.add_parser(
        COMPARE, help=words, description=words, allow_abbrev=False, formatter_class=help_format
    )
    compared.add_argument("a", type=Path, metavar="A.json")
    compared.add_argument("b", type=Path, metavar="B.json")


def _flag(group: argparse._ArgumentGroup, name: str, default: Any, words: str, **more: Any) -> None:
    shown = "" if default in (None, "") else f" Default: {default}."
    more.setdefault("metavar", "VALUE")
    group.add_argument(name, default=default, help=f"{words}{shown}".replace("%", "%%"), **more)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value
