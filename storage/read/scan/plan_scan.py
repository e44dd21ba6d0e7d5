"""Plans a `Scan` from a request: the file groups that can have rows of the result, and the tasks that read them."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.plan.slices import FileSlices, base_slices, whole_files
from weft.storage.read.plan.pruning import keys_in, partitions_in, prune_file_groups
from weft.storage.read.request.projection import Projection, make_projection
from weft.storage.read.request.scan_request import Keys, ScanRequest
from weft.storage.read.scan.divide_scan import divide
from weft.storage.read.scan.scan import Scan
from weft.storage.read.snapshot_files import SnapshotFiles

MIN_PARTS: Final = 8
"""Parts of packed slices from which on only the file groups of a filter are planned: some thousands of file groups."""


def plan_scan(snapshot: SnapshotFiles, request: ScanRequest) -> Scan:
    """Plan a read of a snapshot.

    Raises:
        NotFound: A column or group does not exist; the hint lists those that exist.
        InvalidInput: The filter is not a condition.
        SnapshotExpired: The snapshot has expired.
        CorruptData: A large base file is missing, or its footer is damaged.
    """
    scan = choose_slices(snapshot, request)
    files = [] if request.read_optimized else snapshot.files
    return divide(scan, files, request.parallelism or os.cpu_count() or 1, request.task_bytes)


def choose_slices(snapshot: SnapshotFiles, request: ScanRequest) -> Scan:
    """Select the file groups of a scan, without dividing them into tasks.

    Reads no file of the snapshot. Raises the errors of `plan_scan` except `CorruptData`.
    """
    schema = snapshot.table_schema
    projection = make_projection(schema, request)
    keys = request.keys if request.keys is not None else keys_in(schema, projection.predicate, snapshot.state.levels)
    if request.read_optimized:
        slices = base_slices(snapshot.state)
    elif request.keys is not None:
        slices = snapshot.slices_of(request.keys)
    else:
        filtered = _slices_of_filter(snapshot, projection, keys)
        slices = filtered if filtered is not None else snapshot.slices
    selected = prune_file_groups(schema, slices, projection.predicate, keys)
    return Scan(
        env=snapshot.table_log.env,
        schema=schema,
        projection=projection,
        slices=selected,
        tasks=(),
        at=snapshot.at,
        keys=keys,
        skipped=max(len(slices), len(snapshot.state.slices)) - len(selected),
        whole=whole_files(slices),
    )


def _slices_of_filter(snapshot: SnapshotFiles, projection: Projection, keys: Keys | None) -> FileSlices | None:
    """The file groups that a filter allows, if the table has very many; None to plan all file groups.

    All are planned if a file also has rows of other file groups, because they decide whether it can be read as it is.
    """
    state, schema = snapshot.state, snapshot.table_schema
    if len(state.slices.parts) < MIN_PARTS or snapshot.is_planned:
        return None
    if len(state.levels.union(live.file.bits for live in snapshot.files)) > 1:
        return None  # a log range may belong to file groups of other bits
    groups: Collection[FileGroup] | None = keys
    if keys is None:
        partitions = partitions_in(schema, projection.predicate)
        groups = None if partitions is None else snapshot.groups_in(partitions)
    if groups is None:
        return None
    slices = snapshot.slices_of(groups)
    pairs = zip(slices.slice_files, slices.has_logs.tolist(), strict=True)
    bases = {part.base.path for part, logs in pairs if part is not None and part.base is not None and not logs}
    return slices if bases <= whole_files(slices) else None
