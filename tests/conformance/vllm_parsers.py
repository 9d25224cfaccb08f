"""vLLM's tests of its parsers, run on ours: `python -m tests.conformance.vllm_parsers FOLDER`.

The folder is vLLM's sources. Files are run that test a parser of a format known here; some of their
tests need vLLM's internals (`vllm_stand_in` has none) and fail whatever is read.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.conformance.sorting import run_sorted

HERE = Path(__file__).resolve().parent
TOOLS = (
    *("hermes", "qwen3coder", "glm4_moe", "glm47_moe", "deepseekv3", "deepseekv31", "phi4mini"),
    *("pythonic", "llama4_pythonic", "llama3_json", "granite", "granite4", "lfm2"),
)
REASONING = ("qwen3", "deepseekr1", "deepseekv3", "glm4_moe", "holo2")


def main(folder: Path, options: list[str]) -> int:
    """Run the files by pytest, which gets the options; returns how many failures are unsorted."""
    with tempfile.TemporaryDirectory() as parent:
        tests = Path(parent) / "tests"
        for name in ("tool_parsers", "reasoning", "parser"):
            shutil.copytree(folder / "tests" / name, tests / name)
        (tests / "__init__.py").touch()
        names = [f"tests/tool_parsers/test_{name}_tool_parser.py" for name in TOOLS]
        names += [f"tests/reasoning/test_{name}_reasoning_parser.py" for name in REASONING]
        files = [name for name in names if (Path(parent) / name).exists()]
        # Their package of tests comes before ours, which has the same name.
        paths = os.pathsep.join((parent, str(HERE.parent.parent), str(HERE)))
        arguments = ["-p", "vllm_stand_in", "-c", os.devnull, "--rootdir", parent]
        arguments += ["--continue-on-collection-errors", *options, *files]
        return run_sorted(
            "vllm_parsers", Path(parent), arguments, os.environ | {"PYTHONPATH": paths}
        )


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]), sys.argv[2:]), 255))
