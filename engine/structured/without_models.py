"""Lets transformers be imported without reading the sources of all its models.

Its package knows the names of its models by what is written in their files: at every import it
reads 2,000 of them, twice. All that most processes want is a module of one model, which Python
finds by its path, and what has no model. So only the names of `auto` are known at first, and the
files are read where another name is asked for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

READER = "transformers.utils.import_utils"
"""The module that reads the files and has the class of packages that know names only."""
AUTO = "auto"
KNOWN = ("_modules", "_class_to_module", "_object_missing_backend", "_import_structure", "__all__")
"""What such a package knows of names."""

Names = dict[frozenset[str], dict[str, Any]]
"""Names by their modules, by the libraries that these need."""


def leave_models_out() -> None:
    """Let transformers know the names of its models late, where it is not imported already."""
    is_late = "transformers" in sys.modules or any(isinstance(f, _Finder) for f in sys.meta_path)
    if not is_late:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module that reads the files, once, and changes it when it has been made."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != READER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: types.ModuleType) -> None:
                execute(module)
                if {"define_import_structure", "_LazyModule"} <= vars(module).keys():
                    _change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def _change(reader: Any) -> None:
    """Let the packages that list all models list `auto`, and the others when they are asked."""
    read: Callable[..., Names] = reader.define_import_structure
    models = Path(reader.__file__).parents[1] / "models"

    def read_auto(path: str | Path, prefix: str | None = None) -> Names:
        if Path(path) not in (models, models / "__init__.py"):
            return read(path, prefix)
        within = AUTO if prefix is None else f"{prefix}.{AUTO}"
        return _AutoNames(read(models / AUTO, within), lambda: read(path, prefix))

    reader.define_import_structure = read_auto
    reader._LazyModule = _late_class(reader._LazyModule)


class _AutoNames(Names):
    """The names of `auto`, and what reads all."""

    def __init__(self, names: Names, read_all: Callable[[], Names]) -> None:
        super().__init__(names)
        self.read_all = read_all


def _late_class(kind: Any) -> Any:
    """A class of packages that know names only, some of them late."""

    class LateNames(kind):  # type: ignore[misc]
        """Reads all names where one is asked for that it does not know, or their list."""

        _late: Any = None

        def __init__(self, name: str, file: str, names: Any, *args: Any, **options: Any) -> None:
            super().__init__(name, file, names, *args, **options)
            if isinstance(names, _AutoNames):
                self._late = names, args, options
                del self.__all__

        def __getattr__(self, name: str) -> Any:
            if self._late is not None and self._wants_all(name):
                self._know_all(*self._late)
            return vars(self)[name] if name in vars(self) else super().__getattr__(name)

        def _wants_all(self, name: str) -> bool:
            if name.startswith("__"):
                return name == "__all__"
            known = self._modules, self._class_to_module, self._object_missing_backend
            return not any(name in each for each in (self._objects, *known))

        def _know_all(self, names: _AutoNames, args: Any, options: Any) -> None:
            every = names.read_all()
            every.setdefault(frozenset(), {}).update(names.get(frozenset(), {}))
            whole = kind(self._name, self.__file__, every, *args, **options)
            self.__dict__.update({each: vars(whole)[each] for each in KNOWN})
            self._late = None

    return LateNames
