"""Packs of compiled kernels: found where they are installed, read in place, never written.

A pack is a package of the namespace `tailrace_kernels`: entries of Triton's cache, made on a GPU of
its kind by `tailrace warmup --pack`, and a manifest of their hashes. Triton's keys name a kernel's
source, options, compiler and GPU, so that what does not fit is never asked for. Imports no Triton.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

logger = logging.getLogger(__name__)

NAMESPACE, MANIFEST, ENTRIES = "tailrace_kernels", "manifest.json", "entries"
CACHE_CLASS = "sampling.device.packed_cache:PackedCache"


class Manifest(msgspec.Struct, frozen=True):
    """What a pack holds.

    Attributes:
        triton: the version that compiled it.
        target: the GPUs it is for, as "sm_90".
        files: SHA-256 of each file, by its entry and its name.
    """

    triton: str
    target: str
    files: dict[str, dict[str, str]]


class Pack(NamedTuple):
    """An installed pack."""

    folder: Path
    manifest: Manifest

    def file(self, entry: str, name: str) -> str | None:
        """The path of a file that has the bytes it was packed with; None where there is none."""
        wanted = self.manifest.files.get(entry, {}).get(name)
        if wanted is None:
            return None
        path = self.folder / ENTRIES / entry / name
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            logger.warning("a packed kernel cannot be read and is compiled: %s", error)
            return None
        if found != wanted:
            logger.warning("%s is not what was packed: its kernel is compiled", path)
            return None
        return str(path)

    def group(self, entry: str, name: str) -> dict[str, str] | None:
        """The paths of all files of an entry that has one of this name; None if any is bad."""
        names = self.manifest.files.get(entry, {})
        if name not in names:
            return None
        paths = {each: self.file(entry, each) for each in names}
        whole = {each: path for each, path in paths.items() if path is not None}
        return whole if len(whole) == len(paths) else None


@functools.cache
def installed_packs() -> tuple[Pack, ...]:
    """The installed packs that the installed Triton compiled; others are named in the log."""
    spec = importlib.util.find_spec(NAMESPACE)
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ()
    packs = []
    for place in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(place).glob(f"*/{MANIFEST}")):
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
            if manifest.triton == version:
                packs.append(Pack(path.parent, manifest))
            else:
                words = "kernels in %s are of Triton %s, and %s is installed: they are not used"
                logger.warning(words, path.parent, manifest.triton, version)
    return tuple(packs)


def use_packs() -> None:
    """Let Triton look into installed packs first, in this process and in those that it starts.

    A cache class that the environment names stays.
    """
    if installed_packs():
        os.environ.setdefault("TRITON_CACHE_MANAGER", CACHE_CLASS)
