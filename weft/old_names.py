"""The package names of versions 0.1 and 0.2, `storage` and `streams`, for one more version.

`from storage import Table` gives the class of `weft.storage`: modules of old names are those of the new names, and none
exists twice. It also gives a DeprecationWarning. An installation has no packages of the old names, which would hide
those of others; so they work in a process that has imported weft, and in the folder of a checkout. A module or package
of a user always goes first.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, all_suffixes
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

_PACKAGES: Final = ("storage", "streams")


def install() -> None:
    """Let this process find the old names."""
    # Once, also if weft is imported again: a finder asks all others, so two would ask each other without end.
    if not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        # First, because Python's own finder would read a module of weft a second time, by its old name.
        sys.meta_path.insert(0, _Finder())


def replace(package: str) -> None:
    """Let a package that is imported from a checkout by its old name be the one of the new name."""
    _warn(package, stacklevel=4)
    sys.modules[package] = importlib.import_module(f"weft.{package}")


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, module = fullname.partition(".")
        if package not in _PACKAGES:
            return None
        if module:
            ours = sys.modules.get(f"weft.{package}")
            if sys.modules.get(package) is not ours or find_spec(f"weft.{fullname}") is None:
                return None
        else:
            others = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self)
            specs = (find(fullname, path, target) for find in others if find is not None)
            spec = next(filter(None, specs), None)
            if spec is not None and not _is_ours(spec) and not _is_folder_of_data(spec):
                return None
            _warn(package, stacklevel=3)
        return spec_from_loader(fullname, _SameModule())


class _SameModule(Loader):
    """Gives the module of the new name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"weft.{spec.name}")
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # Python has put that of the old name in its place

    def get_code(self, fullname: str) -> CodeType:
        """For ``python -m streams.cli.main``."""
        spec: Any = find_spec(f"weft.{fullname}")
        code: CodeType = spec.loader.get_code(spec.name)
        return code


def _is_ours(spec: ModuleSpec) -> bool:
    ours = find_spec(f"weft.{spec.name}")
    places = [Path(each.origin).resolve() for each in (ours, spec) if each and each.origin]
    return len(places) == 2 and places[0] == places[1]


def _is_folder_of_data(spec: ModuleSpec) -> bool:
    """Whether Python takes folders without a module for a package, because they have its name."""
    if spec.origin is not None:
        return False
    for place in spec.submodule_search_locations or ():
        for _, folders, files in os.walk(place):
            folders[:] = filter(str.isidentifier, folders)  # others cannot be packages
            if any(file.endswith(tuple(all_suffixes())) for file in files):
                return False
    return True


def _warn(package: str, stacklevel: int) -> None:
    text = f"weft: the package {package!r} is now 'weft.{package}', and users' names are in 'weft': import weft"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
