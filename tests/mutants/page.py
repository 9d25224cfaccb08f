"""The table in docs/known-bugs.md: bugs of other servers, and the tests that fail on each.

`python -m tests.mutants.page` writes it; a test holds page and mutants together.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.mutants.table import MUTANTS

PAGE = Path(__file__).parents[2] / "docs" / "known-bugs.md"
BETWEEN = re.compile(r"(<!-- bugs -->\n).*?(<!-- end of bugs -->\n)", re.S)


def table() -> str:
    """The rows, one for each mutant that was seen elsewhere, in the order of the mutants."""
    lines = [
        "| seen in | what is wrong, and the name of the mutant | tests |",
        "| --- | --- | --- |",
    ]
    for mutant in MUTANTS:
        if mutant.seen:
            tests = ", ".join(f"`{test}`" for test in mutant.tests)
            lines.append(f"| {', '.join(mutant.seen)} | `{mutant.name}` | {tests} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The page with the table as it must be."""
    return BETWEEN.sub(lambda found: found[1] + table() + found[2], PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
