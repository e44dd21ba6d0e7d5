"""Damages a table on purpose: changes entries (with a valid checksum) and files, and removes objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.elsewhere import elsewhere
from tests.faulty_store import FakeClock, other_process
from tests.storage.support.shop import SHOP, append, orders, payments
from weft import Table
from weft.storage.core import names
from weft.storage.core.log.checkpoint_codec import state_json
from weft.storage.core.log.entries import Entry
from weft.storage.core.log.entry_codec import decode_entry
from weft.storage.core.log.file_refs import LogFile, LogIndex
from weft.storage.core.model import Op
from weft.storage.core.names import TABLE_LANE, LaneName, Path, lane_folder, slot_path
from weft.storage.environment import Environment
from weft.storage.files.log_file import SortedRows, put_log_file
from weft.storage.files.slice_file_writer import SliceFileWriter
from weft.storage.services.verify.findings import Finding, VerifyReport
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

Json = dict[str, Any]


class Damage:
    """One table, and changes of its objects without weft."""

    def __init__(self, table: Table) -> None:
        self.uri = table.uri
        self.store: ObjectStore = open_store(table.uri)
        self.schema = table.schema

    def content(self, path: str) -> bytes:
        data = self.store.get(Path(path))
        assert data is not None, path
        return data

    def overwrite(self, path: str, data: bytes) -> str:
        self.store.delete(Path(path))
        self.store.put(Path(path), data)
        return path

    def remove(self, path: str) -> str:
        self.content(path)
        self.store.delete(Path(path))
        return path

    def flip(self, path: str, part: float = 0.5) -> str:
        data = bytearray(self.content(path))
        data[int(len(data) * part)] ^= 0x10
        return self.overwrite(path, bytes(data))

    def paths(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name, _ in self.store.list(Path(folder))]

    def entries(self, lane: str) -> list[Entry]:
        count = len(self.store.list(lane_folder(LaneName(lane))))
        return [
            decode_entry(self.content(slot_path(LaneName(lane), n)), LaneName(lane), n) for n in range(1, count + 1)
        ]

    def slot(self, lane: str, kind: str, number: int = -1) -> str:
        """Path of an entry: by default the last one of its kind."""
        matching = [entry for entry in self.entries(lane) if entry.kind == kind]
        return slot_path(LaneName(lane), matching[number].seq)

    def edit(self, path: str, change: Callable[[Json], object]) -> str:
        """Replace an entry by a changed one with a valid checksum."""
        entry = json.loads(self.content(path))
        del entry["sha256"]
        change(entry)
        return self.overwrite(path, sealed(entry))

    def append(self, lane: str, **changes: object) -> str:
        """Append an entry like the last one of its kind, with consistent numbers."""
        *_, last = self.entries(lane)
        like = json.loads(self.content(slot_path(LaneName(lane), last.seq)))
        del like["sha256"]
        like |= {"seq": last.seq + 1, "prev_id": last.commit_id, "commit_id": "f" * 32, "stamp": last.stamp + 1}
        path = slot_path(LaneName(lane), last.seq + 1)
        self.store.put(path, sealed(like | changes))
        return path

    def edit_slice(self, change: Callable[[Json], object], number: int = 0) -> str:
        """Change the description of a slice in the last BASE."""
        return self.edit(self.slot(TABLE_LANE, "BASE"), lambda entry: change(entry["slices"][number]))

    def rewrite(self, part: str, change: Callable[[pa.Table], pa.Table], number: int = 0) -> str:
        """Change the rows of the base or shadow of a slice of the last BASE, and its entry; returns the path."""
        base = json.loads(self.content(self.slot(TABLE_LANE, "BASE")))
        reference = base["slices"][number][part]
        rows = change(pq.read_table(pa.BufferReader(self.content(reference["path"]))))
        self.store.delete(Path(reference["path"]))
        writer = SliceFileWriter(Environment(self.store), Path(reference["path"]), self.schema)
        (batch,) = rows.combine_chunks().to_batches()
        writer.write(dict(zip(batch.schema.names, batch.columns, strict=True)))
        written = writer.close()
        assert written is not None
        self.edit_slice(lambda file: file.update({part: written.model_dump()}), number)
        return written.path

    def rewrite_overlay(self, change: Callable[[pa.Table], pa.Table], row_group_rows: int) -> str:
        """Change the rows of the first overlay of the last BASE, and its entry; returns the path."""
        path = json.loads(self.content(self.slot(TABLE_LANE, "BASE")))["slices"][0]["overlays"][0]["file"]["path"]
        rows = change(pq.read_table(pa.BufferReader(self.content(path)))).combine_chunks()
        self.store.delete(Path(path))
        env = Environment(self.store).tuned(row_group_rows=row_group_rows)
        writer = SliceFileWriter(env, Path(path), self.schema, columns=rows.column_names)
        (batch,) = rows.to_batches()
        writer.write(dict(zip(batch.schema.names, batch.columns, strict=True)))
        written = writer.close()
        assert written is not None
        self.edit_slice(lambda made: made["overlays"][0].update(file=written.model_dump()))
        return path

    def rewrite_log(self, change: Callable[[pa.Table], pa.Table], number: int = -1) -> str:
        """Change the rows of the file of a commit of orders, and its entry; returns the path.

        The index keeps the same file groups in the same order.
        """
        slot = self.slot("orders", "DATA", number)
        (file,) = (LogFile.model_validate(file) for file in json.loads(self.content(slot))["files"])
        assert isinstance(file.index, LogIndex)
        ranges = file.index.ranges
        with pa.ipc.open_file(pa.BufferReader(self.content(file.file.path))) as reader:
            rows = change(reader.read_all())
        groups = [group for group in self.schema.groups if group.id in file.groups]
        content = SortedRows(
            form="event",
            groups=groups,
            rows=rows,
            partitions=file.index.partitions,
            bits=file.bits,
            partition=np.repeat(np.array(ranges.partition), ranges.rows),
            bucket=np.repeat(np.array(ranges.bucket), ranges.rows),
            deletes=np.asarray(rows.column(names.OP)) != Op.UPSERT,
        )
        self.store.delete(file.file.path)
        written = put_log_file(Environment(self.store), self.schema, file.file.path, content)
        self.edit(slot, lambda entry: entry.update(files=[written.model_dump()]))
        return written.file.path


def sealed(entry: Mapping[str, object]) -> bytes:
    body = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def with_column(rows: pa.Table, name: str, values: list[object]) -> pa.Table:
    number = rows.schema.get_field_index(name)
    return rows.set_column(number, rows.schema.field(number), pa.array(values, rows.schema.field(number).type))


def shop(uri: str) -> Table:
    """A table with slices of all kinds, commits in them, and commits after them.

    Table lane: CREATE, LANE_ADD, LANE_ADD, PLAN, BASE. Lane orders: CLAIM, two commits in the slices, CLAIM, two after
    them. Lane payments: CLAIM and a commit in the slices.
    """
    table = Table.create(uri, SHOP)
    with table.writer("orders") as writer:
        writer.append(orders(*range(40)), batch=("q", 0))
        writer.append(orders(3, 4, 5, 6, op="D", ts=2), batch=("q", 1))
    append(table, payments(*range(10, 20)), "payments")
    table.compact()
    with table.writer("orders") as writer:
        writer.append(orders(*range(0, 40, 2), ts=5), batch=("q", 2))
        writer.append(orders(1, 2, op="D", ts=6), batch=("q", 3))
    return table


def verified(table: Table, *, deep: bool = True) -> VerifyReport:
    """The report, which is the same wherever files are read."""
    report = other_process(table.uri, FakeClock()).verify(deep=deep)
    spread = other_process(table.uri, FakeClock()).verify(deep=deep, execute=elsewhere)
    assert (spread.findings, spread.omitted, spread.cut) == (report.findings, report.omitted, report.cut)
    assert spread.checked == report.checked
    return report


def wrong(table: Table, *, deep: bool = True) -> list[Finding]:
    """The findings of verify, after a check of their form."""
    report = verified(table, deep=deep)
    found = [*report.errors, *report.warnings]
    for finding in found:
        assert finding.where
        assert finding.what
        assert finding.hint
        assert str(finding) in str(report)
    assert report.ok == (not found)
    return found


def lane(name: str, seq: int) -> str:
    return str(slot_path(LaneName(name), seq))


def append_table(damage: Damage, **changes: object) -> str:
    """Append an entry to the table lane, with exactly the given members."""
    path = damage.append("", **changes)
    header = {*("lane", "seq", "epoch", "commit_id", "prev_id", "table_rev", "stamp", "committed_at_ms"), *changes}
    return damage.edit(path, lambda e: [e.pop(name) for name in list(e) if name not in header])


def resealed(data: bytes, **changes: object) -> bytes:
    """A checkpoint with other values, of its state or beside it, and a valid digest."""
    stored = state_json(data)
    values = json.loads(stored if stored is not None else data.split(b"\n", 1)[1])
    for name, value in changes.items():
        (values["state"] if name in values["state"] else values)[name] = value
    head = json.dumps(values).encode()
    digest = hashlib.sha256(head).hexdigest().encode()
    if stored is None:
        return digest + b"\n" + head
    return b"%b%b\n%b %012d\n" % (data[: data.index(stored)], head, digest, len(head))
