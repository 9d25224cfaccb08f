"""The commands that start processes of our own."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder that holds the package."""


def command_of(module: str) -> tuple[str, ...]:
    """The command that runs a module of the package as a program; its arguments follow.

    It is `python -m MODULE`, but imports no file of the directory the user happens to be in.
    """
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); "
        f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return (sys.executable, "-P", "-c", program)
