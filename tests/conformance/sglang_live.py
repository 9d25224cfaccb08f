"""SGLang's tests of a running server, on ours: `python -m tests.conformance.sglang_live FOLDER`.

The folder is SGLang's sources. Every server that a test starts is the demo model, under the name
that the test asks for and with its flags, those of memory and kernels aside.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.conformance.sorting import run_sorted

HERE = Path(__file__).resolve().parent
FILES = (
    "basic/test_openai_server.py",
    *(f"features/test_{name}.py" for name in ("enable_thinking", "reasoning_content")),
    *(f"function_call/test_{name}.py" for name in ("anthropic_tool_use", "tool_choice")),
    "function_call/test_openai_function_calling.py",
    *(f"validation/test_{name}.py" for name in ("large_max_new_tokens", "matched_stop")),
    "validation/test_request_length_validation.py",
)
OTHERS = (
    "test/registered/constrained_decoding/test_constrained_decoding.py",
    "test/manual/openai_server/features/test_cache_report.py",
    "test/manual/openai_server/features/test_continuous_usage_stats.py",
    "test/manual/openai_server/features/test_structural_tag.py",
)


def main(folder: Path, options: list[str]) -> int:
    """Run the files by pytest, which gets the options; returns how many failures are unsorted."""
    with tempfile.TemporaryDirectory() as parent:
        files = [f"test/registered/openai_server/{name}" for name in FILES] + list(OTHERS)
        for name in files:
            shutil.copyfile(folder / name, Path(parent) / Path(name).name)
        # What these import of the package beside servers: tests that several files share.
        kits = Path(parent) / "kits"
        shutil.copytree(folder / "python" / "sglang" / "test" / "kits", kits)
        paths = os.pathsep.join((parent, str(HERE.parent.parent)))
        arguments = ["-p", "tests.conformance.sglang_stand_in", "-c", os.devnull]
        arguments += ["--rootdir", parent, "--timeout=120", "--continue-on-collection-errors"]
        arguments += [*options, *(Path(name).name for name in files)]
        environment = os.environ | {"PYTHONPATH": paths, "SGLANG_KITS": str(kits)}
        return run_sorted("sglang_live", Path(parent), arguments, environment)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]), sys.argv[2:]), 255))
