"""Redacts the log: removes the key ranges with erased keys from entries, archives and checkpoints (PROTOCOL.md, X4).

Once no snapshot needs the log files of an entry, the entry is replaced in its slot by the same entry without indexes.
The slot keeps an entry with the same ``commit_id``, so no rule about slots is affected. A process that stalls before it
replaces a slot, which is archived meanwhile, creates a ghost (A1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from weft.storage.core.log.archive_codec import Chunks, encode_archive
from weft.storage.core.log.entry_codec import decode_entry
from weft.storage.core.log.needed_files import contains
from weft.storage.core.log.redaction import is_fold_of, redacted
from weft.storage.core.names import (
    ARCHIVE,
    TABLE_LANE,
    TIMELINE,
    Kind,
    LaneName,
    ParsedPath,
    Path,
    archive_folder,
    checkpoint_folder,
    lane_folder,
    parse_path,
)
from weft.storage.log.table_log import TableLog
from weft.storage.services.clean.clean import CurrentNeeds, find_needed
from weft.storage.services.erase.key_search import KeySearch
from weft.storage.store.object_store import normalise_errors

READ_AT_ONCE: Final = 256  # number of objects in memory
MAX_PASSES: Final = 3  # a clean may archive entries while they are replaced


@dataclass(frozen=True, slots=True)
class Redaction:
    """Number of entries that were replaced, in slots or archives, and of checkpoints that were deleted."""

    entries: int
    checkpoints: int


def redact_log(table_log: TableLog, search: KeySearch, needs: CurrentNeeds) -> Redaction:
    """Remove the keys from all entries, archives and checkpoints that no snapshot needs.

    Args:
        table_log: The table's log.
        search: The keys.
        needs: What snapshots need, found after the snapshots with the keys have expired.

    Raises:
        CorruptData: An entry or archive is damaged.
        StoreUnavailable: The store does not answer; the next erase continues.
    """
    checkpoints = _replace_checkpoints(table_log, search, needs)
    entries = 0
    for _ in range(MAX_PASSES):
        count = 0
        folders = [Path(TIMELINE), Path(ARCHIVE)]
        for path, parsed, old_contents, new_contents in _redactions(table_log, search, needs, folders):
            _replace(table_log, path, _encode(table_log, parsed, new_contents))
            count += sum(old != new for old, new in zip(old_contents, new_contents, strict=True))
        entries += count
        if not count:
            break
    return Redaction(entries, checkpoints)


def _replace_checkpoints(table_log: TableLog, search: KeySearch, needs: CurrentNeeds) -> int:
    """Replace the checkpoints of the table lane by a new one if they have keys, or if entries will be redacted.

    A checkpoint has the indexes of live folds, and must equal the state that replaying the log gives.

    Returns:
        The number of deleted checkpoints.
    """
    checkpoints = list(_objects(table_log, [checkpoint_folder(TABLE_LANE)]))
    folders = [lane_folder(TABLE_LANE), archive_folder(TABLE_LANE)]
    if not any(search.in_json(data) for _, _, data in checkpoints) and not any(
        _redactions(table_log, search, needs, folders)
    ):
        return 0
    # The next process that opens the table should not have to read all entries.
    table_log.save_checkpoint()
    table_log.store.delete_many([path for path, _, _ in checkpoints])
    return len(checkpoints)


def _redactions(
    table_log: TableLog, search: KeySearch, needs: CurrentNeeds, folders: Iterable[Path]
) -> Iterator[tuple[Path, ParsedPath, list[bytes], list[bytes]]]:
    """Yield the slots and archives to replace: path, its parts, old entries, new entries."""
    chunks = Chunks(table_log.env.tuning.archive_chunk)
    for path, parsed, data in _objects(table_log, folders):
        if parsed.kind is Kind.ENTRY:
            contents, first = [data], parsed.slot
        else:
            contents, first = search.contents(parsed, data), chunks.first_slot(parsed.slot)
        have_key = [search.in_json(content) for content in contents]
        if not any(have_key):
            continue
        are_unneeded = _unneeded(table_log, contents, parsed.lane, first, needs)
        if parsed.kind is Kind.ARCHIVE and not all(are_unneeded):
            # Nothing needed the entries when they were archived, which may be later than `needs`.
            needs = find_needed(table_log)
            are_unneeded = _unneeded(table_log, contents, parsed.lane, first, needs)
        if not any(has_key and is_unneeded for has_key, is_unneeded in zip(have_key, are_unneeded, strict=True)):
            continue
        # Redact all entries of an archive, not only those with these keys. Then a late request, after that of another
        # erase, does not bring a key back.
        yield (
            path,
            parsed,
            contents,
            [
                redacted(content, parsed.lane, first + i) if is_unneeded else content
                for i, (content, is_unneeded) in enumerate(zip(contents, are_unneeded, strict=True))
            ],
        )


def _replace(table_log: TableLog, path: Path, data: bytes) -> None:
    """Replace an entry or archive by an equivalent one. No other object of a table is overwritten."""
    with normalise_errors(path):
        table_log.store.put(path, data)


def _encode(table_log: TableLog, parsed: ParsedPath, contents: Sequence[bytes]) -> bytes:
    if parsed.kind is Kind.ENTRY:
        return contents[0]
    return encode_archive(parsed.lane, parsed.slot, contents, Chunks(table_log.env.tuning.archive_chunk))


def _unneeded(
    table_log: TableLog, contents: Sequence[bytes], lane: LaneName, first: int, needs: CurrentNeeds
) -> list[bool]:
    """`_is_unneeded` for consecutive entries of a lane, from entry ``first`` on."""
    return [_is_unneeded(table_log, data, lane, seq, needs) for seq, data in enumerate(contents, first)]


def _is_unneeded(table_log: TableLog, data: bytes, lane: LaneName, seq: int, needs: CurrentNeeds) -> bool:
    """Whether no snapshot reads the log files of an entry, so that nothing reads their indexes."""
    if lane != TABLE_LANE:
        spans = needs.needed.entries.get(lane)
        # A lane without needs was retired, or was added later.
        return not contains(spans, seq) if spans is not None else table_log.was_retired(lane)
    if seq > needs.table:
        return False
    return not is_fold_of(decode_entry(data, lane, seq), needs.needed.files)


def _objects(table_log: TableLog, folders: Iterable[Path]) -> Iterator[tuple[Path, ParsedPath, bytes]]:
    """Yield path, its parts and content of weft's objects in some folders. Objects deleted meanwhile are left out."""
    for folder in folders:
        paths = [Path(f"{folder}/{name}") for name, _ in table_log.store.list(folder)]
        parsed_paths = [(path, parsed) for path in paths if (parsed := parse_path(path)) is not None]
        for start in range(0, len(parsed_paths), READ_AT_ONCE):
            part = parsed_paths[start : start + READ_AT_ONCE]
            with normalise_errors(folder):
                contents = table_log.store.get_many([path for path, _ in part])
            for (path, parsed), data in zip(part, contents, strict=True):
                if data is not None:
                    yield path, parsed, data
