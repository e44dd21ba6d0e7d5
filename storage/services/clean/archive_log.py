"""Archives the log: packs old entries into one object per chunk, and deletes their slots (PROTOCOL.md, "Archives").

    CLEAN_INTENT(archived) ─▶ per chunk: read its slots ─▶ create the archive ─▶ read it back ─▶ delete the slots

Cleans share no state: if a clean dies, the next one finds the remaining slots, whether the archive of their chunk
exists or not. An entry can be read from its slot or from the archive, so the choice of chunks is only a policy. A chunk
is archived if its entries are not needed to open the table, to read the newest snapshot or a retained one, or to write,
and if no snapshot needs a file of its FOLD entries. So an erase may redact all entries of an archive, and all erases
write the same bytes (X4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft.storage.core.log.archive_codec import decode_archive, encode_archive
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import CleanIntent
from weft.storage.core.log.entry_codec import decode_entry
from weft.storage.core.log.features import ERASE
from weft.storage.core.log.needed_files import ENDLESS, Needed, Spans, touches, union_spans
from weft.storage.core.log.redaction import is_fold_of, redacted
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import (
    LANE_ARCHIVES,
    LANE_ENTRIES,
    TABLE_LANE,
    LaneName,
    archive_path,
    lane_folder,
    parse_archive,
    parse_slot,
    slot_path,
)
from weft.storage.errors import CorruptData, TableError
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.table_log import TableLog
from weft.storage.store.object_store import MAX_CREATE_BYTES, list_by_folder, missing, normalise_errors
from weft.storage.write.lane_progress import read_lane

READ_AT_ONCE: Final = 64  # number of entries in one round of requests
MAX_CHUNK_BYTES: Final = 4 * MAX_CREATE_BYTES  # of entries in memory; the archive must fit into one request


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The result of archiving: the number of entries that were moved, and of archives that were created."""

    entries: int = 0
    archives: int = 0


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk in which at least one slot has an object.

    Attributes:
        lane: Its lane.
        number: 1, 2, ...
        slots: The slots that have objects, ascending.
        may_pack: Whether its entries may be archived now; if not, an earlier clean has announced them.
    """

    lane: LaneName
    number: int
    slots: Sequence[int]
    may_pack: bool


def archive_log(
    table_log: TableLog, state: TableState, needed: Needed, held_cuts: Sequence[Cut], *, dry_run: bool
) -> ArchiveResult:
    """Archive the entries that no process needs as separate objects.

    Args:
        table_log: The table's log.
        state: The state that cleaning judges by.
        needed: What retained and held snapshots need.
        held_cuts: Snapshots below ``oldest_retained`` that a savepoint, plan or pin keeps.
        dry_run: Only find out what would be done, as well as is possible without reading entries.

    Raises:
        CorruptData: An archive is damaged; the slots of its chunk were not deleted.
        StoreUnavailable: The store does not answer; the next clean continues.
    """
    chunks = table_log.commit_log.archives.chunks
    objects_by_lane = {
        TABLE_LANE: table_log.store.list(lane_folder(TABLE_LANE)),
        **list_by_folder(table_log.store, LANE_ENTRIES),
    }
    candidates: list[_Chunk] = []
    for lane in (TABLE_LANE, *state.lanes):
        objects = objects_by_lane.get(lane, ())
        candidates += _find_chunks(table_log, state, needed, held_cuts, lane, objects, dry_run=dry_run)
    others = {lane: objects for lane, objects in objects_by_lane.items() if lane and lane not in state.lanes}
    candidates += _find_retired_chunks(table_log, others)
    if dry_run:
        packed_chunks = [chunk for chunk in candidates if chunk.may_pack and len(chunk.slots) == chunks.size]
        return ArchiveResult(sum(len(chunk.slots) for chunk in packed_chunks), len(packed_chunks))
    # The dict keeps the last chunk of each lane, because chunks ascend.
    _announce(table_log, {chunk.lane: chunks.last_slot(chunk.number) for chunk in candidates if chunk.may_pack})
    entries = archives = 0
    for chunk in candidates:
        is_new, is_archived = _pack(table_log, chunk, needed)
        archives += is_new
        if is_archived:
            table_log.store.delete_many([slot_path(chunk.lane, seq) for seq in chunk.slots])
            entries += len(chunk.slots)
    return ArchiveResult(entries, archives)


def _find_chunks(
    table_log: TableLog,
    state: TableState,
    needed: Needed,
    held_cuts: Sequence[Cut],
    lane: LaneName,
    objects: Iterable[tuple[str, int]],
    *,
    dry_run: bool,
) -> Iterator[_Chunk]:
    """Chunks of a lane, ascending, that have objects in their slots and may be archived or were announced.

    ``objects``: name and size of the objects in the folder of the lane.
    """
    chunks = table_log.commit_log.archives.chunks
    by_chunk: dict[int, list[int]] = {}
    for name, _ in objects:
        seq = parse_slot(name)
        if seq:
            by_chunk.setdefault(chunks.of(seq), []).append(seq)
    if all(len(slots) < chunks.size for slots in by_chunk.values()) and lane not in state.archived:
        return  # most lanes have fewer entries than one chunk
    if lane:
        last = max((seq for slots in by_chunk.values() for seq in slots), default=0)
        in_use = _in_use_of_lane(table_log, state, needed, lane, last, dry_run=dry_run)
    else:
        in_use = _in_use_of_table(table_log, state, held_cuts)
    for number in sorted(by_chunk):
        may_pack = not touches(in_use, chunks.first_slot(number) - 1, chunks.last_slot(number))
        if may_pack or chunks.last_slot(number) <= state.archived.get(lane, 0):
            yield _Chunk(lane, number, sorted(by_chunk[number]), may_pack)


def _find_retired_chunks(
    table_log: TableLog, objects_by_lane: Mapping[str, Iterable[tuple[str, int]]]
) -> Iterator[_Chunk]:
    """Archived chunks that have objects in their slots, of lanes that the state does not list.

    Such an object is a ghost (A1), or a clean that died left it in a lane that was retired later.
    """
    archives_by_lane = list_by_folder(table_log.store, LANE_ARCHIVES) if objects_by_lane else {}
    chunks = table_log.commit_log.archives.chunks
    for lane in sorted(objects_by_lane.keys() & archives_by_lane.keys()):
        numbers = {parse_archive(name) for name, _ in archives_by_lane[lane]}
        by_chunk: dict[int, list[int]] = {}
        for seq in filter(None, (parse_slot(name) for name, _ in objects_by_lane[lane])):
            if chunks.of(seq) in numbers:
                by_chunk.setdefault(chunks.of(seq), []).append(seq)
        yield from (_Chunk(LaneName(lane), number, sorted(by_chunk[number]), False) for number in sorted(by_chunk))


def _in_use_of_lane(
    table_log: TableLog, state: TableState, needed: Needed, name: LaneName, last: int, *, dry_run: bool
) -> Spans:
    """Entries of a writer's lane that a reader, the next writer or an open fencing barrier may still read.

    Except in a dry run, writes a checkpoint of the lane first if none is recent: batches write none (W10).

    ``last``: the last slot of the lane that has an object.
    """
    lane = state.lanes[name]
    in_use = needed.read.get(name, ())
    if state.intent is not None and name in state.intent.lanes:
        in_use = union_spans(in_use, [(state.intent.lanes[name] - 1, ENDLESS)])
    if lane.closed is not None:
        return union_spans(in_use, [(lane.closed, ENDLESS)])
    rolled_back = state.rolled_back.get(name, ())
    checkpoint = table_log.checkpoints.newest_lane(table_log.commit_log, name, rolled_back)
    newer_entries = last - (checkpoint.head if checkpoint is not None else 0)
    if not dry_run and newer_entries >= table_log.env.tuning.lane_checkpoint_every:
        table_log.checkpoints.save_lane(name, read_lane(table_log, name, rolled_back))
        checkpoint = table_log.checkpoints.newest_lane(table_log.commit_log, name, rolled_back)
    return union_spans(in_use, [((checkpoint.head if checkpoint is not None else 1) - 1, ENDLESS)])


def _in_use_of_table(table_log: TableLog, state: TableState, held_cuts: Sequence[Cut]) -> Spans:
    """Entries of the table lane that opening the table, a retained snapshot or a held snapshot reads."""
    in_use: Spans = ()
    for until, end in [(state.oldest_retained, ENDLESS), *((cut.table, cut.table) for cut in held_cuts)]:
        checkpoint = table_log.checkpoints.newest_table(table_log.commit_log, until)
        in_use = union_spans(in_use, [((checkpoint.head if checkpoint is not None else 1) - 1, end)])
    return in_use


def _announce(table_log: TableLog, last: dict[LaneName, int]) -> None:
    """Publish the last slot of each lane that may be archived, before any slot is archived (A3)."""

    def build(newest: TableState) -> CleanIntent | None:
        archived_slots = {lane: seq for lane, seq in last.items() if seq > newest.archived.get(lane, 0)}
        if not archived_slots:
            return None
        return CleanIntent(**table_log.header(newest), oldest_retained=newest.oldest_retained, archived=archived_slots)

    table_log.publish(build)


def _pack(table_log: TableLog, chunk: _Chunk, needed: Needed) -> tuple[bool, bool]:
    """Archive a chunk; returns whether this call created the archive, and whether the chunk is archived."""
    path, chunks = archive_path(chunk.lane, chunk.number), table_log.commit_log.archives.chunks
    with normalise_errors(path):
        data = table_log.store.get(path)
    if data is not None:
        _redact_like_slots(table_log, chunk, decode_archive(data, chunk.lane, chunk.number, chunks).contents())
        return False, True
    contents = _read_contents(table_log, chunk, needed) if chunk.may_pack else None
    if contents is None:
        return False, False
    archive = encode_archive(chunk.lane, chunk.number, contents, chunks)
    if len(archive) > table_log.env.tuning.archive_bytes:
        return False, False
    with normalise_errors(path):
        is_new = table_log.store.put_if_absent(path, archive)
        data = table_log.store.get(path)
    if data is None:
        raise missing(path)
    archived_contents = decode_archive(data, chunk.lane, chunk.number, chunks).contents()
    if not _are_same(chunk, archived_contents, contents):
        raise CorruptData(
            f"archive {path} differs from the slots that it was made of; the slots were not deleted",
            hint="restore it from a copy of the store, or delete it while all its slots exist",
        )
    _redact_like_slots(table_log, chunk, archived_contents)
    return is_new, True


def _redact_like_slots(table_log: TableLog, chunk: _Chunk, archived_contents: Sequence[bytes]) -> None:
    """Redact an archive if an erase has redacted one of its slots; before the slots are deleted (X4).

    A clean that stalls between reading the slots and creating the archive archives entries that are redacted meanwhile.
    An erase that lists the archives later redacts the archive itself.

    Args:
        table_log: The table's log.
        chunk: The chunk; its archive exists.
        archived_contents: The entries in its archive.
    """
    if ERASE not in table_log.refresh().writer_features:
        return  # no erase has redacted anything: it records the feature first (X2)
    chunks = table_log.commit_log.archives.chunks
    first = chunks.first_slot(chunk.number)
    redacted_contents = [redacted(content, chunk.lane, first + i) for i, content in enumerate(archived_contents)]
    path = archive_path(chunk.lane, chunk.number)
    for start in range(0, len(chunk.slots), READ_AT_ONCE):
        part = chunk.slots[start : start + READ_AT_ONCE]
        with normalise_errors(path):
            data = table_log.store.get_many([slot_path(chunk.lane, seq) for seq in part])
        slots = dict(zip((seq - first for seq in part), data, strict=True))
        if any(content == redacted_contents[i] != archived_contents[i] for i, content in slots.items()):
            with normalise_errors(path):
                table_log.store.put(path, encode_archive(chunk.lane, chunk.number, redacted_contents, chunks))
            return


def _are_same(chunk: _Chunk, archived_contents: Sequence[bytes], contents: Sequence[bytes]) -> bool:
    """Whether two lists have the same entries. An erase may have redacted some of them meanwhile (X4)."""
    if archived_contents == contents:
        return True
    first = chunk.slots[0]
    return all(
        redacted(archived_content, chunk.lane, first + i) == redacted(content, chunk.lane, first + i)
        for i, (archived_content, content) in enumerate(zip(archived_contents, contents, strict=True))
        if archived_content != content
    )


def _read_contents(table_log: TableLog, chunk: _Chunk, needed: Needed) -> list[bytes] | None:
    """Bytes of a chunk's entries; None if they do not fit into an archive, if an entry is missing or damaged, or if a
    snapshot needs a file of a FOLD among them.
    """
    log = CommitLog(table_log.env)
    contents: list[bytes] = []
    slots = log.archives.chunks.slots(chunk.number)
    previous_id: str | None = None
    for start in range(0, len(slots), READ_AT_ONCE):
        part = slots[start : start + READ_AT_ONCE]
        with normalise_errors(slot_path(chunk.lane, part[0])):
            data = log.archives.read([(chunk.lane, seq) for seq in part])
        for seq, content in zip(part, data, strict=True):
            try:
                entry = decode_entry(content, chunk.lane, seq) if content is not None else None
            except TableError:
                return None  # verify reports it; no reader of the table needs it
            if content is None or entry is None or previous_id not in (None, entry.prev_id):
                return None
            if is_fold_of(entry, needed.files):
                return None
            previous_id = entry.commit_id
            contents.append(content)
        if sum(map(len, contents)) > MAX_CHUNK_BYTES:
            return None
    return contents
