"""Triton's cache after the installed packs: what they lack is compiled into it."""

from __future__ import annotations

from typing import Any

from triton.runtime.cache import CacheManager, FileCacheManager

from sampling.device.kernel_packs import installed_packs


class PackedCache(CacheManager):  # type: ignore[misc]  # Triton has no types
    """An entry of the packs, or else of the cache on disk, whose folder is made only then."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._entry = key
        self._packs = () if override or dump else installed_packs()
        self._options = {"override": override, "dump": dump}
        self._made: Any = None

    @property
    def _own(self) -> Any:
        if self._made is None:
            self._made = FileCacheManager(self._entry, **self._options)
        return self._made

    def get_file(self, filename: str) -> str | None:
        """The path of a file; None where it is in neither."""
        for pack in self._packs:
            if (path := pack.file(self._entry, filename)) is not None:
                return path
        mine: str | None = self._own.get_file(filename)
        return mine

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of a kernel's files by name; None where it is in neither."""
        for pack in self._packs:
            if (paths := pack.group(self._entry, filename)) is not None:
                return paths
        mine: dict[str, str] | None = self._own.get_group(filename)
        return mine

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file into the cache on disk."""
        path: str = self._own.put(data, filename, binary)
        return path

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Note which files of the cache on disk belong together."""
        path: str = self._own.put_group(filename, group)
        return path
