"""Checks the slots of a lane: which are taken, and whether each holds a readable entry, in its slot or in an archive.

A problem with a slot or an archive is reported, and reading goes on with the next one. Archives are listed after slots:
a slot that is gone by then was archived before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from storage.core.log import entries
from storage.core.log.archive_codec import Chunks
from storage.core.log.entries import Entry, Unresolved
from storage.core.log.file_refs import Sidecar
from storage.core.names import (
    LaneName,
    Path,
    archive_folder,
    archive_path,
    lane_folder,
    parse_archive,
    parse_slot,
    slot_path,
)
from storage.environment import Environment
from storage.errors import CorruptData, TableError, UnsupportedFormat
from storage.log.archived_entries import Archives
from storage.services.verify.findings import Finding, Findings, damage, info, warning
from storage.store.object_store import ObjectStore, normalise_errors

AT_ONCE: Final = 64  # entries in memory: each may have megabytes
_CLEANED: Final = "nobody reads them; clean deletes them"


def read_object(store: ObjectStore, path: Path) -> bytes | None:
    """Content of an object, None if there is none."""
    with normalise_errors(path):
        return store.get(path)


def read_sidecar(store: ObjectStore, sidecar: Sidecar) -> tuple[bytes | None, str]:
    """Content of a sidecar; or None, and what is wrong with it in a word."""
    data = read_object(store, sidecar.path)
    intact = data is not None and Sidecar.of(sidecar.path, data) == sidecar
    return (data, "") if intact else (None, "missing" if data is None else "damaged")


def list_slots(env: Environment, lane: LaneName, findings: Findings) -> list[int]:
    """The slots of a lane that are taken, ascending."""
    slots, _ = _list(env, lane, None)
    if slots and slots[-1] != len(slots):
        # A listing of a folder that is written to may miss objects that were created meanwhile.
        slots, _ = _list(env, lane, findings)
    return slots


def _list(env: Environment, lane: LaneName, findings: Findings | None) -> tuple[list[int], set[int]]:
    """The slots that are taken, ascending, and the chunks that are archived."""
    slots: set[int] = set()
    chunks: set[int] = set()
    for folder, parse, found in (
        (lane_folder(lane), parse_slot, slots),
        (archive_folder(lane), parse_archive, chunks),
    ):
        for name, _ in env.store.list(folder):
            number = parse(name)
            if number:
                found.add(number)
            elif findings is not None:
                findings.add(
                    info(f"{folder}/{name}", "it is not an entry; nobody reads it", "delete it, unless you need it")
                )
    return sorted(slots.union(*map(Chunks(env.tuning.archive_chunk).slots, chunks))), chunks


def is_taken(env: Environment, lane: LaneName, seq: int) -> bool:
    """Whether there is an entry in a slot, readable or not."""
    with normalise_errors(slot_path(lane, seq)):
        try:
            return Archives(env.store, env.tuning).taken((lane, seq))
        except TableError:
            return True  # its archive is damaged


def check_archives(env: Environment, lane: LaneName, findings: Findings) -> None:
    """Report objects in slots that are archived: not deleted yet, or written too late."""
    slots = sorted(seq for name, _ in env.store.list(lane_folder(lane)) if (seq := parse_slot(name)))
    _, chunks = _list(env, lane, None)
    archives = Archives(env.store, env.tuning)
    left = late = 0
    for seq in (seq for seq in slots if archives.chunks.of(seq) in chunks):
        try:
            with normalise_errors(slot_path(lane, seq)):
                data = env.store.get(slot_path(lane, seq))
                archives.ask([(lane, seq)])
                same = data is None or data == archives.content((lane, seq))
        except TableError:
            continue  # reported where its entries are read
        left, late = left + (same and data is not None), late + (not same)
    where = f"lane {lane!r}" if lane else "the table lane"
    if left:
        what = f"{left} entries are in their slots and in an archive: a clean has not finished"
        findings.add(info(where, what, _CLEANED))
    if late:
        what = f"{late} slots hold what was put there after they were archived, by processes that had stalled"
        findings.add(info(where, what, _CLEANED))


def read_slots(
    env: Environment, lane: LaneName, slots: Sequence[int], findings: Findings
) -> Iterator[tuple[int, Entry | Unresolved | None]]:
    """(slot, entry) of every slot up to the last one that is taken; None for one that is missing or damaged.

    A gap yields its first slot only. Lists that an entry keeps in a sidecar are not loaded.
    """
    expected = 1
    reader = _SlotReader(env, lane, findings)
    for start in range(0, len(slots), AT_ONCE):
        part = slots[start : start + AT_ONCE]
        for seq, content in zip(part, reader.contents(part), strict=True):
            if seq != expected:
                findings.add(_gap(lane, expected, seq, reader.chunks))
                yield expected, None
            yield seq, reader.decode(seq, content)
            expected = seq + 1
            findings.count("entries")
            findings.done()


class _SlotReader:
    """Reads slots and archives. Of a chunk whose archive is damaged, it reads the slots that are still there."""

    def __init__(self, env: Environment, lane: LaneName, findings: Findings) -> None:
        self._store, self._lane, self._findings = env.store, lane, findings
        self._archives = Archives(env.store, env.tuning)
        self.chunks = self._archives.chunks
        self._asked: set[int] = set()
        self._damaged: set[int] = set()

    def contents(self, slots: Sequence[int]) -> list[bytes | None]:
        """Bytes of the entries in slots, None where there is none."""
        wanted = [(self._lane, seq) for seq in slots]
        with normalise_errors(slot_path(*wanted[0])):
            for chunk in sorted({self.chunks.of(seq) for seq in slots} - self._asked):
                self._ask(chunk)
            try:
                return self._archives.read(wanted)
            except TableError:
                return list(self._store.get_many([slot_path(*slot) for slot in wanted]))

    def _ask(self, chunk: int) -> None:
        self._asked.add(chunk)
        where = str(archive_path(self._lane, chunk))
        try:
            if self._archives.ask([(self._lane, self.chunks.first_slot(chunk))]):
                self._findings.count("archives")
        except CorruptData as error:
            self._damaged.add(chunk)
            self._findings.add(damage("S20", where, error.message))
        except UnsupportedFormat as error:
            self._damaged.add(chunk)
            what = f"{error.message}: its entries cannot be checked"
            self._findings.add(warning(where, what, "verify with a newer version"))

    def decode(self, seq: int, data: bytes | None) -> Entry | Unresolved | None:
        """The entry in a slot; a problem is reported, unless it follows from a damaged archive."""
        where = str(slot_path(self._lane, seq))
        if data is None:
            if self.chunks.of(seq) not in self._damaged:
                self._findings.add(damage("S2", where, "the entry was listed, but is gone"))
            return None
        try:
            return entries.decode_entry(data, self._lane, seq)
        except CorruptData as error:
            self._findings.add(damage("S1", where, f"{error.message}; readers and writers stop here"))
        except UnsupportedFormat as error:
            what = f"{error.message}: it cannot be checked"
            self._findings.add(warning(where, what, "verify with the version that wrote it"))
        return None


def _gap(lane: LaneName, first: int, following: int, chunks: Chunks) -> Finding:
    chunk = chunks.of(first)
    missing = f"entry {first} is" if following == first + 1 else f"entries {first} to {following - 1} are"
    what = f"{missing} missing, but later ones exist: nobody reads beyond the gap, and their rows are not visible"
    if first == chunks.first_slot(chunk) and following > chunks.last_slot(chunk):
        what += "; if they were archived, this archive is missing"
        hint = "restore this archive, or the entries, from a copy of the store"
        return damage("S2", str(archive_path(lane, chunk)), what, hint)
    return damage("S2", str(slot_path(lane, first)), what)
