"""llama.cpp's tests of its server, on ours: `python -m tests.conformance.llama_cpp_live FOLDER`.

The folder is llama.cpp's sources. Every server that a test starts is the demo model, under the
alias that the test gives and with what of its settings means something here.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.conformance.sorting import run_sorted

HERE = Path(__file__).resolve().parent
NAMES = (
    *("basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion"),
    *("ignore_eos", "infill", "metrics", "security", "template", "tokenize", "tool_call"),
)


def main(folder: Path, options: list[str]) -> int:
    """Run the files by pytest, which gets the options; returns how many failures are unsorted."""
    with tempfile.TemporaryDirectory() as parent:
        suite = Path(parent) / "tools" / "server" / "tests"
        shutil.copytree(folder / "tools" / "server" / "tests", suite)
        shutil.copytree(folder / "models" / "templates", Path(parent) / "models" / "templates")
        (suite / "pytest.ini").unlink()
        arguments = ["-p", "tests.conformance.llama_cpp_stand_in", "-c", os.devnull]
        arguments += ["--rootdir", str(suite), "--timeout=120", "--continue-on-collection-errors"]
        arguments += [*options, *(f"unit/test_{name}.py" for name in NAMES)]
        paths = os.pathsep.join((str(suite), str(HERE.parent.parent)))
        return run_sorted("llama_cpp_live", suite, arguments, os.environ | {"PYTHONPATH": paths})


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]), sys.argv[2:]), 255))
