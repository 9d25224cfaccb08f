"""The entry point of the program `tailrace`, under a name that no other project has.

Folders of `PYTHONPATH` come before installed packages, and one of them may hold a `server` or an
`engine` of somebody else's. Such folders are looked through last, here and in the processes that
the program starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

PACKAGES = ("server", "engine", "sampling", "demo")


def run() -> NoReturn:
    """Run the program."""
    set_aside()
    from server.cli import run as run_command

    run_command()


def set_aside() -> None:
    """Move folders with packages of our names behind our own, and out of `PYTHONPATH`."""
    own = Path(__file__).resolve().parent
    if str(own) not in sys.path:  # an editable install finds our packages when no folder has them
        sys.path.append(str(own))
    kept = []
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        folder = Path(entry or os.curdir).absolute()  # to Python an empty one is this directory
        if folder.resolve() == own or not _holds_ours(folder):
            kept.append(entry)
            continue
        places = [place for place in sys.path if place and Path(place) == folder]
        for place in places:
            sys.path.remove(place)
        sys.path += places[:1]
    if "PYTHONPATH" in os.environ:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def _holds_ours(folder: Path) -> bool:
    return any((folder / name).is_dir() or (folder / f"{name}.py").exists() for name in PACKAGES)
