"""`tailrace compare-logprobs`: from flags to a table or JSON."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from engine.errors import ConfigError
from server.compare.asked import LogprobServer
from server.compare.distance import (
    Compared,
    Explanation,
    compared,
    distance,
    explanations,
    is_shifted,
)
from server.compare.records import read_sequences
from server.remote import Remote, add_server_flags


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.usage = "tailrace compare-logprobs FILE [FLAGS]"
    words = 'A JSON object a line: "token_ids" and "logprobs" of the last of them (or "start").'
    parser.add_argument("file", type=Path, metavar="FILE", help=words)
    add_server_flags(parser)
    words = "The trainer's values are of logits divided by this number."
    parser.add_argument("--temperature", type=_positive, default=1.0, metavar="T", help=words)
    words = "Show so many of the worst positions."
    parser.add_argument("--worst", type=int, default=10, metavar="N", help=words)
    words = "Print the report as JSON, with every position."
    parser.add_argument("--json", action="store_true", help=words)


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {word}")
    return value


def run_compare(given: dict[str, Any]) -> int:
    """Compare a file with a server; returns 1 where a gap has no explanation."""
    sequences = list(read_sequences(given["file"]))
    if not sequences:
        raise ConfigError(f"{given['file']} holds no sequence")
    key = given["api_key"] or os.environ.get("OPENAI_API_KEY") or None
    remote = Remote(given["base_url"], key=key)
    server = LogprobServer(remote, given["model"], given["temperature"])
    alone = [server.logprobs(sequence) for sequence in sequences]
    beside = server.together(sequences)
    both = zip(sequences, alone, beside, strict=True)
    found = [compared(index, *each) for index, each in enumerate(both)]
    causes = explanations(server.about(), found)
    if given["json"]:
        print(orjson.dumps(_document(found, causes)).decode())
    else:
        print(_report(found, causes, given["worst"]))
    return int(bool(_unexplained(found, causes)))


def _unexplained(found: Sequence[Compared], causes: Sequence[Explanation]) -> int:
    """Positions whose gap is beyond what all causes together explain."""
    allowed = sum(cause.nats for cause in causes)
    return sum(int((np.abs(each.gaps) > allowed).sum()) for each in found)


def _document(found: Sequence[Compared], causes: Sequence[Explanation]) -> dict[str, Any]:
    gaps = np.concatenate([each.gaps for each in found])
    return {
        **distance(gaps)._asdict(),
        "explanations": [cause._asdict() for cause in causes],
        "unexplained": _unexplained(found, causes),
        "shift": is_shifted(found),
        "sequences": [
            {
                "index": each.number,
                **distance(each.gaps)._asdict(),
                "positions": each.positions,
                "token_ids": each.token_ids,
                "trainer": each.trainer.tolist(),
                "server": each.server.tolist(),
            }
            for each in found
        ],
    }


def _report(found: Sequence[Compared], causes: Sequence[Explanation], num_worst: int) -> str:
    whole = distance(np.concatenate([each.gaps for each in found]))
    lines = [
        f"{whole.num_tokens} tokens of {len(found)} sequences, trainer against server, in nats:",
        f"  mean |gap| {whole.mean:.3g}, worst {whole.worst:.3g}, bias {whole.bias:+.3g}",
        f"  mean |ratio - 1| {whole.ratio:.3g}, KL (k3) {whole.kl:.3g}",
        "what explains a gap:",
        *(f"  {cause.nats:.3g}  {cause.cause}" for cause in causes),
    ]
    count = _unexplained(found, causes)
    words = "all gaps are explained" if not count else f"{count} gaps are larger than that"
    lines.append(words)
    if shift := is_shifted(found):
        lines.append(f"the trainer's values fit far better shifted by {shift:+d} position")
    lines += _worst(found, num_worst)
    return "\n".join(lines)


def _worst(found: Sequence[Compared], count: int) -> list[str]:
    rows = [
        (
            abs(gap),
            each.number,
            each.positions[i],
            each.token_ids[i],
            each.trainer[i],
            each.server[i],
        )
        for each in found
        for i, gap in enumerate(each.gaps.tolist())
    ]
    rows.sort(reverse=True)
    shown = [
        f"  {gap:9.3g}  {index:8d}  {position:8d}  {token:8d}  {trainer:10.5f}  {server:10.5f}"
        for gap, index, position, token, trainer, server in rows[: max(count, 0)]
    ]
    head = f"  {'gap':>9}  {'sequence':>8}  {'position':>8}  {'token':>8}  {'trainer':>10}  server"
    return ["worst positions:", head, *shown] if shown else []
