"""Custom mergers: which foreign code may run, and how it is found.

A table names a merger as ``module:function``. Opening a table must not run foreign code, so a module is imported only
if this process allows it: by `allow`, or by the environment variable ``WEFT_MERGERS`` (module names, separated by
commas).
Tasks that are sent to other processes take the allowance with them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection
from typing import Final

from storage.core.modes.custom import Merger, register
from storage.core.schema.table_schema import TableSchema
from storage.errors import InvalidInput

VARIABLE: Final = "WEFT_MERGERS"
_allowed: set[str] = set()


def allow(*modules: str) -> None:
    """Let tables use mergers of these modules, in this process."""
    _allowed.update(modules)


def allowed() -> frozenset[str]:
    """Modules whose mergers this process runs."""
    named = os.environ.get(VARIABLE, "")
    return frozenset(_allowed | {part.strip() for part in named.split(",") if part.strip()})


def prepare(schema: TableSchema, modules: Collection[str]) -> None:
    """Import the mergers that a table's groups name.

    Args:
        schema: The table's.
        modules: The allow-list of the process that began the work.

    Raises:
        InvalidInput: A module is not allowed, or has no such merger.
    """
    for group in schema.groups:
        if ":" in group.merge:
            register(group.merge, _find(group.merge, modules))


def _find(name: str, modules: Collection[str]) -> Merger:
    module, _, function = name.partition(":")
    if module not in modules:
        raise InvalidInput(
            f"merger {name!r}: module {module!r} is not on this process's allow-list",
            hint=f'storage.mergers.allow("{module}"), or {VARIABLE}={module} in the environment',
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"merger {name!r}: {error}", hint="module:function, importable here") from error
    if not callable(found):
        raise InvalidInput(f"merger {name!r} is not callable", hint="see storage.core.modes.custom.Merger")
    return found
