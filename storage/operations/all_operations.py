"""All operations: every `Operation` that a module of this package defines."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import weft.storage.operations
from weft.storage.operations.operation import Operation


def _load() -> dict[str, Operation[Any, Any]]:
    names = sorted(module.name for module in pkgutil.iter_modules(weft.storage.operations.__path__))
    modules = [import_module(f"weft.storage.operations.{name}") for name in names if name != "all_operations"]
    return {value.name: value for module in modules for value in vars(module).values() if isinstance(value, Operation)}


OPERATIONS: Final[Mapping[str, Operation[Any, Any]]] = MappingProxyType(_load())
"""All operations by name."""
