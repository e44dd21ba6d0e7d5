"""Split: change the number of buckets while the table is being written."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from weft.storage.operations.operation import Face, Finished, Operation, Request
from weft.storage.plural import counted
from weft.storage.services.split import SplitResult, bits_of
from weft.storage.table import Table


def _check_buckets(value: Any) -> Any:
    bits_of(value)
    return value


class SplitRequest(Request):
    """Change the number of buckets while writers and readers go on: rewrites each file group once.

    Each file group is complete in itself: run it again after a failure, or let compactions go on. Writers that know
    the old number need not be restarted.
    """

    buckets: Annotated[int, BeforeValidator(_check_buckets), Face(type=int)]
    """The number of buckets: a power of two. Fewer are merged."""


def _describe(finished: Finished[SplitRequest, SplitResult]) -> str:
    result = finished.result
    change = f"{result.before} to {result.buckets} buckets" if result.before != result.buckets else None
    return (
        f"{change or f'{result.buckets} buckets'}: {counted(result.file_groups, 'new file group')}, "
        f"{result.rows:,} rows, {result.bytes_read / 1e6:.1f} MB read, {result.bytes_written / 1e6:.1f} MB written in "
        f"{result.seconds:.1f} s"
    )


SPLIT: Final = Operation(
    name="split",
    request=SplitRequest,
    describe=_describe,
    columns="buckets bigint, before bigint, file_groups bigint, rows bigint, "
    "bytes_read bigint, bytes_written bigint, seconds double",
    examples=("weft split lake/orders_wide --buckets 32", "weft split pipeline.yaml --buckets 16 --concurrency 4"),
    stage="splitting",
    on_cluster=True,
    method=Table.split,
)
