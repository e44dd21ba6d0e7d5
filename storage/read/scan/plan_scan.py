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

FEWEST_PARTS: Final = 8
"""Parts of packed slices from which on the file groups that a filter leaves out are not planned: some thousands."""


def plan_scan(snapshot: SnapshotFiles, request: ScanRequest) -> Scan:
    """Plan a read of a snapshot.

    Raises:
        NotFound: The table has no such column or group; the hint lists those that it has.
        InvalidInput: The filter is not a condition.
        SnapshotExpired: The snapshot has expired.
        CorruptData: A large base file is missing, or its footer is damaged.
    """
    scan = choose_slices(snapshot, request)
    files = [] if request.read_optimized else snapshot.files
    return divide(scan, files, request.parallelism or os.cpu_count() or 1, request.task_bytes)


def choose_slices(snapshot: SnapshotFiles, request: ScanRequest) -> Scan:
    """A scan with the file groups that it has to read, not yet divided into tasks.

    Reads no file of the snapshot. Raises what `plan_scan` raises, but for `CorruptData`.
    """
    schema = snapshot.table_schema
    projection = make_projection(schema, request)
    keys = request.keys if request.keys is not None else keys_in(schema, projection.predicate, snapshot.state.levels)
    if request.read_optimized:
        slices = base_slices(snapshot.state)
    elif request.keys is not None:
        slices = snapshot.slices_of(request.keys)
    else:
        few = _few(snapshot, projection, keys)
        slices = few if few is not None else snapshot.slices
    chosen = prune_file_groups(schema, slices, projection.predicate, keys)
    return Scan(
        env=snapshot.table_log.env,
        schema=schema,
        projection=projection,
        slices=chosen,
        tasks=(),
        at=snapshot.at,
        keys=keys,
        skipped=max(len(slices), len(snapshot.state.slices)) - len(chosen),
        whole=whole_files(slices),
    )


def _few(snapshot: SnapshotFiles, projection: Projection, keys: Keys | None) -> FileSlices | None:
    """The file groups that a filter allows, of a table with very many; None if all have to be planned.

    All are planned if a file has rows of others, too: whether it can be read as it is depends on them.
    """
    state, schema = snapshot.state, snapshot.table_schema
    if len(state.slices.parts) < FEWEST_PARTS or snapshot.is_planned:
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
    clean = zip(slices.made, slices.has_logs.tolist(), strict=True)
    bases = {made.base.path for made, logs in clean if made is not None and made.base is not None and not logs}
    return slices if bases <= whole_files(slices) else None
