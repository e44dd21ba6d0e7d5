"""All procedures of the catalog: ``CALL weft.system.compact(table => 'shop.orders_wide')``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.storage.errors import NotFound
from weft.storage.operations.all_operations import OPERATIONS
from weft.streams.catalog.operation_procedures import build_procedure
from weft.streams.catalog.procedure import Procedure

PROCEDURES: Final = {
    operation.name: build_procedure(operation) for operation in OPERATIONS.values() if operation.procedure
}
"""All procedures by name."""


def find_procedure(name: str, procedures: Mapping[str, Procedure] = PROCEDURES) -> Procedure:
    """Find a procedure by its name, in any case.

    Raises:
        NotFound: The procedure does not exist; the hint lists all procedures.
    """
    procedure = procedures.get(name.lower())
    if procedure is None:
        raise NotFound(f"there is no procedure {name!r}", hint=f"procedures: {', '.join(sorted(procedures))}")
    return procedure
