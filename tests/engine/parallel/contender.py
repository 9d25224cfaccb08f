"""A contender of `benchmarks.contenders` that answers, hangs, or dies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from benchmarks.contenders import Reply, contend


def answer(line: str) -> Reply:
    """Do what a line says."""
    if line == "die":
        os._exit(3)
    if line == "hang":
        time.sleep(600.0)
    return {"line": line}


def prepare() -> tuple[Reply, Callable[[str], Reply]]:
    """Make ready, as noisily as libraries do."""
    print("no line of ours", flush=True)
    return {"pid": os.getpid()}, answer


if __name__ == "__main__":
    contend(prepare)
