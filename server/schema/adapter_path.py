"""Names and folders of adapters, as flags and requests give them."""

from __future__ import annotations

from pathlib import Path


def path_refusal(path: str, root: str | None) -> str | None:
    """Why a folder may not be read, to be put after what names it; None where it may.

    Args:
        root: the folder that all others must be in; None for any.
    """
    if "\0" in path:
        return "must be a path, got a zero character"
    if root is None:
        return None
    if Path(path).resolve().is_relative_to(Path(root).resolve()):
        return None
    return f"must be in the folder of --lora-root ({root}), got {path!r}"
