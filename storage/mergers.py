"""Custom mergers: which modules a process may run mergers from, and how a merger is loaded.

A table names a merger as ``module:function``. Opening a table must not run code that this process does not trust, so a
module is imported only if the process allows it: through `allow`, or through the environment variable ``WEFT_MERGERS``
(module names, separated by commas). Tasks that run in other processes carry the allow-list of the process that planned
them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Iterator
from types import MappingProxyType
from typing import Final

from weft.storage.core.modes import Merger, Mergers, mode_of
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput

VARIABLE: Final = "WEFT_MERGERS"
_allowed: set[str] = set()


def allow(*modules: str) -> None:
    """Let tables use mergers from these modules, in this process.

    Args:
        modules: Names as in ``import``.
    """
    _allowed.update(modules)


def allowed() -> frozenset[str]:
    """Modules whose mergers this process runs."""
    names = os.environ.get(VARIABLE, "").split(",")
    return frozenset(_allowed | {name.strip() for name in names if name.strip()})


class ProcessModules(Collection[str]):
    """The modules that this process allows at the time of each access; pickling fixes them."""

    def __contains__(self, module: object) -> bool:
        return module in allowed()

    def __iter__(self) -> Iterator[str]:
        return iter(allowed())

    def __len__(self) -> int:
        return len(allowed())

    def __reduce__(self) -> tuple[type[frozenset[str]], tuple[list[str]]]:
        return frozenset, (sorted(allowed()),)


def load(schema: TableSchema, modules: Collection[str]) -> Mergers:
    """Import the mergers that a table's groups name.

    Args:
        schema: The table's schema.
        modules: The allow-list of the process that planned the work.

    Returns:
        The mergers by the name that a group has as ``merge``; read-only, and empty for most tables.

    Raises:
        InvalidInput: A module is not on the allow-list, or has no such merger.
    """
    groups = [group for group in schema.groups if mode_of(group).runs_merger]
    return MappingProxyType({group.merge: _load(group.merge, modules) for group in groups})


def _load(name: str, modules: Collection[str]) -> Merger:
    module, _, function = name.partition(":")
    if module not in modules:
        raise InvalidInput(
            f"merger {name!r}: module {module!r} is not on this process's allow-list",
            hint=f'call weft.storage.mergers.allow("{module}"), or set {VARIABLE}={module} in the environment',
        )
    try:
        merger: Merger = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"merger {name!r}: {error}", hint="name an importable module:function") from error
    if not callable(merger):
        raise InvalidInput(f"merger {name!r} is not callable", hint="name a function (rows, offsets) -> rows")
    return merger
