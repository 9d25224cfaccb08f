"""vLLM's tests of its parsers, run on ours: `python -m tests.conformance.vllm_parsers FOLDER`.

The folder is vLLM's sources. Files are run that test a parser of a format known here; some of their
tests need vLLM's internals (`vllm_stand_in` has none) and fail whatever is read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = (
    *("hermes", "qwen3coder", "glm4_moe", "glm47_moe", "deepseekv3", "deepseekv31", "phi4mini"),
    *("pythonic", "llama4_pythonic", "llama3_json", "granite", "granite4", "lfm2"),
)
REASONING = ("qwen3", "deepseekr1", "deepseekv3", "glm4_moe", "holo2")


def main(folder: Path, options: list[str]) -> int:
    """Run the files by pytest, which gets the options; returns its status."""
    with tempfile.TemporaryDirectory() as parent:
        tests = Path(parent) / "tests"
        for name in ("tool_parsers", "reasoning"):
            shutil.copytree(folder / "tests" / name, tests / name)
        (tests / "__init__.py").touch()
        names = [f"tests/tool_parsers/test_{name}_tool_parser.py" for name in TOOLS]
        names += [f"tests/reasoning/test_{name}_reasoning_parser.py" for name in REASONING]
        files = [name for name in names if (Path(parent) / name).exists()]
        # Their package of tests comes before ours, which has the same name.
        paths = os.pathsep.join((parent, str(HERE.parent.parent), str(HERE)))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "vllm_stand_in", "-c", os.devnull]
        command += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += ["--rootdir", parent, *options, *files]
        return subprocess.run(
            command, cwd=parent, env=os.environ | {"PYTHONPATH": paths}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
