"""All procedures of the catalog: ``CALL weft.system.compact(table => 'shop.orders_wide')``."""

from __future__ import annotations

from typing import Final

from weft.storage.errors import NotFound
from weft.storage.operations.all_operations import OPERATIONS
from weft.streams.catalog.operation_procedures import procedure_of
from weft.streams.catalog.procedure import Procedure

PROCEDURES: Final = {each.name: procedure_of(each) for each in OPERATIONS.values() if each.procedure}
"""All procedures by name."""


def find_procedure(name: str) -> Procedure:
    """The procedure of a name, whatever its case.

    Raises:
        NotFound: There is none; the hint lists all.
    """
    found = PROCEDURES.get(name.lower())
    if found is None:
        raise NotFound(f"there is no procedure {name!r}", hint=f"procedures: {', '.join(sorted(PROCEDURES))}")
    return found
