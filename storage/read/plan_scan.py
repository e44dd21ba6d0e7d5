"""Plans a `Scan` from a request: the file groups that can have rows of the result, and the tasks that read them."""

from __future__ import annotations

import os

from storage.core.plan.slices import base_slices, whole_files
from storage.read.divide_scan import divide
from storage.read.projection import make_projection
from storage.read.pruning import keys_in, matching
from storage.read.scan import Scan
from storage.read.scan_request import ScanRequest
from storage.read.snapshot_files import SnapshotFiles


def plan_scan(snapshot: SnapshotFiles, request: ScanRequest) -> Scan:
    """Plan a read of a snapshot.

    Raises:
        NotFound: The table has no such column or group; the hint lists those that it has.
        InvalidInput: The filter is not a condition.
        SnapshotExpired: The snapshot has expired.
        CorruptData: A large base file is missing, or its footer is damaged.
    """
    scan = choose_slices(snapshot, request)
    files = [] if request.read_optimized else snapshot.log_files
    return divide(scan, files, request.parallelism or os.cpu_count() or 1, request.task_bytes)


def choose_slices(snapshot: SnapshotFiles, request: ScanRequest) -> Scan:
    """A scan with the file groups that it has to read, not yet divided into tasks.

    Reads no file of the snapshot. Raises what `plan_scan` raises, but for `CorruptData`.
    """
    schema = snapshot.schema
    projection = make_projection(schema, request)
    keys = request.keys if request.keys is not None else keys_in(schema, projection.predicate, snapshot.state.levels)
    if request.read_optimized:
        slices = base_slices(snapshot.state)
    elif request.keys is not None:
        slices = snapshot.slices_of(request.keys)
    else:
        slices = snapshot.slices
    chosen = matching(schema, slices, projection.predicate, keys)
    return Scan(
        env=snapshot.table_log.env,
        schema=schema,
        projection=projection,
        slices=chosen,
        tasks=(),
        at=snapshot.cut,
        keys=keys,
        skipped=len(slices) - len(chosen),
        whole=whole_files(slices),
    )
