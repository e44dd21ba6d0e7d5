"""Split: changes the number of buckets while writers run (PROTOCOL.md, "Splits").

The number is a setting of the schema (G1). Writers use the number that they know. Compactions rewrite file groups that
have another number of bits, each with its parts in one entry (G2). A split rewrites all of them at once. A split that
died is continued by any compaction, or by a split to the same number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from weft.storage.config.table_config import MAX_BUCKETS
from weft.storage.core.log.entries import Schema
from weft.storage.core.log.features import BUCKETS
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.slices import FileSlice
from weft.storage.errors import Conflict, InvalidInput
from weft.storage.log import snapshot_cut
from weft.storage.log.schema_entry import schema_entry
from weft.storage.log.table_log import TableLog
from weft.storage.plural import counted
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.compaction.compaction import CompactionResult, compaction_steps
from weft.storage.services.steps.service_plan import MAX_ATTEMPTS
from weft.storage.services.steps.steps import Steps
from weft.storage.services.steps.tasks import Execute, one_by_one


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of a split or merge of file groups.

    Attributes:
        buckets: Number of buckets that the table has now.
        before: Number of buckets before this call; equal to ``buckets`` if nothing changed.
        file_groups: Number of new file groups that were written.
        rows: Visible rows in the new file groups.
        bytes_read: Stored bytes that were merged.
        bytes_written: Stored bytes of the new base and shadow files.
        seconds: Wall-clock time.
    """

    buckets: int
    before: int
    file_groups: int
    rows: int
    bytes_read: int
    bytes_written: int
    seconds: float


def split_steps(table_log: TableLog, buckets: int, *, execute: Execute = one_by_one) -> Steps[SplitResult]:
    """Change the number of buckets, and rewrite all file groups that have another number: one task in each step.

    Writers, readers and services continue meanwhile. Each file group is complete in itself: after an error or a kill
    call it again with the same number, or let compactions continue. Raises as `weft.Table.split` does.
    """
    start_time = time.monotonic()
    previous_buckets = set_buckets(table_log, buckets)
    results: list[CompactionResult] = []
    waits = 0
    while True:
        snapshot = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
        if 1 << snapshot.table_schema.bucket_bits != buckets:
            raise Conflict(
                f"the table was split to {1 << snapshot.table_schema.bucket_bits} buckets meanwhile",
                hint="run one of the two again",
            )
        if not unsplit(snapshot):
            break
        result = yield from compaction_steps(table_log, snapshot, _is_unsplit(snapshot), execute)
        results.append(result)
        waits = 0 if result.done else waits + 1
        if waits == MAX_ATTEMPTS:
            raise Conflict(
                f"other services published first in each of {MAX_ATTEMPTS} attempts",
                hint="the number of buckets is changed: run it again, or let compactions split what is left",
            )
    return SplitResult(
        buckets=buckets,
        before=previous_buckets,
        file_groups=sum(len(result.done) for result in results),
        rows=sum(result.rows for result in results),
        bytes_read=sum(result.bytes_read for result in results),
        bytes_written=sum(result.bytes_written for result in results),
        seconds=time.monotonic() - start_time,
    )


def unsplit(snapshot: Snapshot) -> list[FileSlice]:
    """File groups of a snapshot whose number of bits differs from the setting of the table."""
    return list(filter(_is_unsplit(snapshot), snapshot.slices))


def _is_unsplit(snapshot: Snapshot) -> Callable[[FileSlice], bool]:
    bits = snapshot.table_schema.bucket_bits
    return lambda file_slice: file_slice.group.bits != bits


def bits_of(buckets: int) -> int:
    """Number of bits for a number of buckets.

    Raises:
        InvalidInput: The number is not a power of two, or is out of range.
    """
    if isinstance(buckets, bool) or not isinstance(buckets, int):
        raise InvalidInput(f"buckets: {buckets!r} is not a number", hint="give a number such as 16")
    if buckets < 1 or buckets > MAX_BUCKETS:
        raise InvalidInput(f"buckets: {buckets} is out of range", hint=f"give a power of two from 1 to {MAX_BUCKETS}")
    if buckets & (buckets - 1):
        smaller, larger = 1 << (buckets.bit_length() - 1), 1 << buckets.bit_length()
        nearest = f"{smaller} or {larger}" if larger <= MAX_BUCKETS else str(smaller)
        raise InvalidInput(
            f"buckets: {buckets} is not a power of two, so its file groups would not be parts of the present ones",
            hint=f"give {nearest}",
        )
    return buckets.bit_length() - 1


def set_buckets(table_log: TableLog, buckets: int) -> int:
    """Set the number of buckets for new commits and slices; returns the previous number.

    Raises:
        InvalidInput: The number is not a power of two, or is out of range. Nothing was changed.
    """
    bits, previous_buckets = bits_of(buckets), 0

    def build(state: TableState) -> Schema | None:
        nonlocal previous_buckets
        previous_buckets = 1 << state.schema.bucket_bits
        if previous_buckets == buckets:
            return None
        created_bits = state.schema.created_bits
        schema = replace(
            state.schema,
            bucket_bits=bits,
            created_bits=state.schema.bucket_bits if created_bits is None else created_bits,
        )
        return schema_entry(
            table_log, state, schema, f"{counted(buckets, 'bucket')} instead of {previous_buckets}", [BUCKETS]
        )

    table_log.publish(build)
    return previous_buckets
