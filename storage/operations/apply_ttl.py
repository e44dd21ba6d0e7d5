"""Apply the time to live: remove the rows and deletes that are older."""

from __future__ import annotations

from typing import Final

from weft.storage.operations.operation import Finished, Operation, Request
from weft.storage.plural import counted
from weft.storage.services.expiry import ExpiryResult
from weft.storage.table import Table


class ApplyTtlRequest(Request):
    """Remove the rows and deletes that are older than the table's time to live. Writers go on.

    The services of weft run and weft services do it continuously; weft alter set-ttl sets it. File groups in which
    nothing is overdue are not rewritten. weft clean deletes the old files.
    """


def _describe(finished: Finished[ApplyTtlRequest, ExpiryResult]) -> str:
    result = finished.result
    text = (
        f"{counted(result.rows, 'row')} and {counted(result.deletes, 'delete')} removed from "
        f"{counted(result.file_groups, 'file group')}"
    )
    if result.skipped:
        text += f"; {counted(result.skipped, 'file group')} skipped, because another service was first: run it again"
    return text


APPLY_TTL: Final = Operation(
    name="apply_ttl",
    request=ApplyTtlRequest,
    describe=_describe,
    columns="rows bigint, deletes bigint, file_groups bigint, skipped bigint",
    examples=("weft apply-ttl lake/orders_wide",),
    stage="looking for old rows",
    method=Table.apply_ttl,
)
