"""MaskBench's schemas, asked of our grammars: `python -m tests.conformance.maskbench FOLDER`.

The folder is `maskbench/data` of guidance-ai/jsonschemabench: a schema a file, and values with
whether they are valid. Each schema is checked as a request's would be, as it is and leniently, in a
process that is killed where a server would kill it; each value is read as compact JSON by the
grammar that was kept to, as it is or with its keys in the schema's order. `--step N` takes every
Nth schema.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from server.errors import ApiError
from server.structured.subschemas import all_schemas
from tests.server.structured.checks import checked, matches

LIMIT_S = 10.0
"""A server's limit for a check."""


class Verdict(NamedTuple):
    """What became of a schema.

    Attributes:
        refused: the code of its refusal and the first words of the message; None where it was kept.
        wrong: values that are not valid and whose texts were taken.
        valid, taken: values that are valid, and those of them whose texts were taken.
    """

    refused: str | None
    wrong: list[str]
    valid: int = 0
    taken: int = 0


def judged(path: Path, is_lenient: bool) -> Verdict:
    """Check a file's schema, and its values by the grammar."""
    case = json.loads(path.read_text())
    try:
        grammar = checked("json", case["schema"], lenient=is_lenient)
    except ApiError as error:
        return Verdict(f"{error.code}: {error.message.partition(': leave it out')[0][-60:]}", [])
    wrong, valid, taken = [], 0, 0
    order: dict[str, int] = {}
    for _, node in all_schemas(case["schema"]):
        for key in node.get("properties") or ():
            order.setdefault(key, len(order))
    for test in case["tests"]:
        texts = [_compact(value) for value in (test["data"], _ordered(test["data"], order))]
        try:
            is_taken = any(matches(grammar, text) for text in dict.fromkeys(texts))
        except AssertionError:  # over a limit of the grammar's, which ends a reply with a 400
            is_taken = False
        if test["valid"]:
            valid, taken = valid + 1, taken + is_taken
        elif is_taken and not grammar.ignored:
            wrong.append(texts[0][:100])
    return Verdict(None, wrong, valid, taken)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _ordered(value: Any, order: dict[str, int]) -> Any:
    """The value with its keys in the order that the schema has them in, as replies do."""
    if isinstance(value, list):
        return [_ordered(item, order) for item in value]
    if not isinstance(value, dict):
        return value
    keys = sorted(value, key=lambda key: order.get(key, len(order)))
    return {key: _ordered(value[key], order) for key in keys}


def _judged_all(paths: list[Path], is_lenient: bool) -> list[tuple[Path, Verdict]]:
    verdicts = []
    pool = ProcessPoolExecutor(1)
    for path in paths:
        try:
            verdict = pool.submit(judged, path, is_lenient).result(LIMIT_S)
        except TimeoutError:
            verdict = Verdict("grammar_too_large: takes too long", [])
            for process in list(pool._processes.values()):
                process.kill()
            pool.shutdown()
            pool = ProcessPoolExecutor(1)
        verdicts.append((path, verdict))
    pool.shutdown()
    return verdicts


def main(folder: Path, step: int) -> int:
    """Print what became of the schemas; returns how many invalid values were taken."""
    paths = sorted(folder.glob("*.json"))[::step]
    num_wrong = 0
    for is_lenient in (False, True):
        verdicts = _judged_all(paths, is_lenient)
        refused: Counter[Any] = Counter(own.refused for _, own in verdicts if own.refused)
        valid = sum(own.valid for _, own in verdicts)
        taken = sum(own.taken for _, own in verdicts)
        wrong = [(path.name, text) for path, own in verdicts for text in own.wrong]
        num_wrong += len(wrong)
        print(f"\n{'leniently' if is_lenient else 'strictly'}: {refused.total()} of", end=" ")
        print(f"{len(paths)} refused; {taken} of {valid} valid values taken; {len(wrong)} invalid")
        for words, count in refused.most_common(25):
            print(f"{count:6} {words}")
        for name, text in wrong[:25]:
            print(f"invalid: {name} {text}")
    return num_wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step", type=int, default=1)
    given = parser.parse_args()
    sys.exit(min(main(given.folder, given.step), 255))
