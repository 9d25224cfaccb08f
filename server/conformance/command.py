"""The flags of `tailrace conformance`, and one run of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any

import orjson

from engine.errors import ConfigError
from server.bench.target import find_model, parse_target
from server.conformance.report import document, header, line, page, summary
from server.conformance.run import run_checks
from server.conformance.subject import Subject
from server.remote import Remote, add_server_flags
from server.version import VERSION


def add_conformance(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.usage = "tailrace conformance [FLAGS]"
    add_server_flags(parser)
    words = "Take certificates that cannot be checked."
    parser.add_argument("--insecure", action="store_true", help=words)
    words = "Longest wait for a part of a reply, in seconds."
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help=words)
    words = "Write the report as a page of HTML."
    parser.add_argument("--html", type=Path, default=None, metavar="FILE", help=words)
    words = "Print the report as JSON."
    parser.add_argument("--json", action="store_true", help=words)


def run_conformance(given: dict[str, Any]) -> int:
    """Examine a server; returns 1 where a check failed."""
    key = given["api_key"] or os.environ.get("OPENAI_API_KEY") or None
    verifies = not given["insecure"]
    target = parse_target(given["base_url"], key=key, verifies=verifies)
    remote = Remote(given["base_url"], key=key, verifies=verifies, timeout_s=given["timeout"])
    model = asyncio.run(find_model(target, given["model"]))
    server = {"url": remote.url, "model": model, "made": f"tailrace {VERSION}"}
    server["made"] += time.strftime(", %Y-%m-%d %H:%M UTC", time.gmtime())
    results, as_json = [], given["json"]
    if not as_json:
        print(f"{model} at {remote.url}\n{header()}", flush=True)
    for result in run_checks(Subject(remote, model)):
        results.append(result)
        if not as_json:
            print(line(result), flush=True)
    print(orjson.dumps(document(results, server)).decode() if as_json else summary(results))
    if given["html"] is not None:
        _write(given["html"], page(results, server))
    return int(any(result.status == "fail" for result in results))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path} cannot be written: {error.strerror}") from None
