"""Entries of the timeline: their shapes, their bytes, and nothing else.

An entry is one immutable JSON object in one slot of one lane. Reading is strict: a damaged entry is `CorruptData`, an
entry of a kind, field or feature that this version does not know is `UnsupportedFormat`; nothing is skipped. The
checksum is the last member and covers every byte before it, so it is verified without re-serialising.
What they say of files: `storage.core.log.file_refs`. Shapes: FORMAT.md, "Entries". What they mean to each other:
PROTOCOL.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypedDict, get_args

from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, ValidationError, WrapSerializer

from storage.core.log.file_refs import FileGroup, LogFile, Seqs, SharedSeqs, Sidecar, SliceFile, Strict
from storage.core.names import LaneName
from storage.errors import CorruptData, UnsupportedFormat

WRITER_FEATURES: Final = frozenset({"lanes"})
"""Features of a table that this version can write."""

FORMAT_VERSION: Final = 2
"""Of the tables that this version creates, reads and writes. Version 1 named some members differently."""

_CHECKSUM_PREFIX: Final = b',"sha256":"'
_CHECKSUM_BYTES: Final = len(_CHECKSUM_PREFIX) + 64 + len(b'"}')


def _dump_slices(slices: Sequence[SliceFile], dump: SerializerFunctionWrapHandler) -> Any:
    return dump(list(slices))


StoredSlices = Annotated[Sequence[SliceFile], WrapSerializer(_dump_slices)]
"""A list of slices: those that were decoded, or a `SliceList`."""

SpansByLane = dict[LaneName, list[tuple[int, int]]]
"""Per lane spans (after, up to) of entries that mean nothing, ascending."""


class Promise(Strict):
    """What a lane says of one group's events to come: none has a first ordering value below ``value`` (JSON form).

    ``late`` counts the lane's live events so far that were below a promise made before them.
    """

    value: Any
    late: int


class Header(Strict):
    """What every entry has.

    Attributes:
        lane: "" for the table lane.
        seq: 1, 2, ... without gaps.
        epoch: Number of the claim under which it was written; 0 in the table lane.
        commit_id: Random; tells one's own entry from another's.
        prev_id: ``commit_id`` of entry seq - 1; "" for the first.
        table_rev: Slot of the newest CREATE, SCHEMA or DONE entry that its writer knew; of a CLAIM, that of the entry
            before; 0 in the table lane.
        stamp: Milliseconds that order versions (never a duration, never compared with a clock).
        committed_at_ms: Wall clock, made monotone within the lane; used only to find a snapshot by time.
    """

    lane: LaneName
    seq: int
    epoch: int
    commit_id: str
    prev_id: str
    table_rev: int
    stamp: int
    committed_at_ms: int


class HeaderFields(TypedDict):
    """The members of a `Header`, to build an entry with: ``Mark(**header, began_at_ms=..., lanes=...)``."""

    lane: LaneName
    seq: int
    epoch: int
    commit_id: str
    prev_id: str
    table_rev: int
    stamp: int
    committed_at_ms: int


class Create(Header):
    """First entry of the table lane."""

    kind: Literal["CREATE"] = "CREATE"
    format_version: Literal[2] = FORMAT_VERSION
    table_id: str
    reader_features: list[str]
    writer_features: list[str]
    table_schema: dict[str, Any]


class LaneAdd(Header):
    """A writer's lane exists from here on."""

    kind: Literal["LANE_ADD"] = "LANE_ADD"
    name: LaneName
    lane_id: int
    stream: str


class Schema(Header):
    """The schema from here on; everything that older entries and files say can still be read under it."""

    kind: Literal["SCHEMA"] = "SCHEMA"
    reader_features: list[str]
    writer_features: list[str]
    table_schema: dict[str, Any]
    change: str


class Plan(Header):
    """A compaction or fold of the snapshot (``table``, ``cut``) has begun; while open it keeps its files."""

    kind: Literal["PLAN"] = "PLAN"
    plan_id: str
    table: int
    cut: Seqs
    file_groups: int


class Abort(Header):
    """A compaction gave up, or was given up; its files are garbage, and it may publish nothing any more."""

    kind: Literal["ABORT"] = "ABORT"
    plan_id: str
    reason: str


class Base(Header):
    """Slices that are readable from here on; ``last`` closes the plan.

    ``covered`` (a cut, or empty): every row of an entry up to it is in a slice by now. Without this fact, file groups
    that have no rows, or have had none for long, would keep the logs of all time alive.
    """

    kind: Literal["BASE"] = "BASE"
    plan_id: str
    last: bool
    covered: Seqs
    slices: StoredSlices


class FoldedGroup(Strict):
    """The part of a file group's logs that a fold file holds: entries after ``start`` up to the fold's ``to``.

    Attributes:
        parent: Cut of the slice on top of which it was folded; empty if there was none.
        start: Per lane the last entry that is *not* in it: the slice's cut, or the end of the fold before.
    """

    partition: str
    bits: int
    bucket: int
    parent: SharedSeqs
    start: SharedSeqs

    @property
    def group(self) -> FileGroup:
        """The file group whose logs it folds."""
        return FileGroup(self.partition, self.bits, self.bucket)


class Fold(Header):
    """Register-form log files: what commits up to ``to`` say, merged but not yet in any slice. Closes its plan.

    ``covered`` (``to``, or empty): every row of an entry up to it is in a slice or in a fold by now.
    """

    kind: Literal["FOLD"] = "FOLD"
    plan_id: str
    to: Seqs
    covered: Seqs
    files: list[LogFile]
    file_groups: list[FoldedGroup]


class Savepoint(Header):
    """The snapshot (``table``, ``lanes``) keeps its files until it is released."""

    kind: Literal["SAVEPOINT"] = "SAVEPOINT"
    name: str
    table: int
    lanes: Seqs
    note: str


class Release(Header):
    """A savepoint is no more."""

    kind: Literal["RELEASE"] = "RELEASE"
    name: str


class Restoration(Strict):
    """What a restore makes of the table; all that is needed to finish it.

    Attributes:
        label: What was asked for, in words.
        table: The prefix of the table lane whose slices are taken back (T0).
        last_kept: Per fenced lane the last entry that stays.
        rolled_back: Per lane that is cut the spans (after, up to) that were rolled back before: in fenced lanes up to
            ``last_kept``.
        covered: As stated at ``table``.
        slices: The newest slice of every file group at ``table``.
    """

    label: str
    table: int
    last_kept: Seqs
    rolled_back: SpansByLane
    covered: Seqs
    slices: StoredSlices


class Intent(Header):
    """A barrier begins: an action that takes effect once every lane in ``lanes`` has a claim of this barrier.

    ``lanes`` says up to where each has none. ``restore`` is None where the lanes are to be closed.
    """

    kind: Literal["INTENT"] = "INTENT"
    lanes: Seqs
    restore: Restoration | None


class Done(Header):
    """The barrier of INTENT ``intent`` is complete; ``heads`` are the slots of its first claim in every lane."""

    kind: Literal["DONE"] = "DONE"
    intent: int
    heads: Seqs


class Mark(Header):
    """``lanes``: per lane the last entry that its publisher saw, after the entry before this one and after
    ``began_at_ms``, by its clock; ``committed_at_ms`` is after that.

    So it says what was committed by then, with no regard to what commits say of their own time (S24 TimeStable).
    """

    kind: Literal["MARK"] = "MARK"
    began_at_ms: int
    lanes: Seqs


class CleanIntent(Header):
    """Snapshots of prefixes of the table lane shorter than ``oldest_retained`` expire, unless they are kept by name.

    ``archived``: per lane ("" is the table lane) the last slot that may be archived from here on.
    """

    kind: Literal["CLEAN_INTENT"] = "CLEAN_INTENT"
    oldest_retained: int
    archived: Seqs = Field(default_factory=dict)


class CleanDone(Header):
    """The files that CLEAN_INTENT ``intent`` gave up are deleted."""

    kind: Literal["CLEAN_DONE"] = "CLEAN_DONE"
    intent: int
    files: int
    bytes: int


class Claim(Header):
    """A writer's incarnation begins, or an operator's action; every older incarnation of this lane is fenced.

    ``intent`` is the slot of the INTENT that it serves; 0 for a writer's, and for a fence.
    """

    kind: Literal["CLAIM"] = "CLAIM"
    owner: str
    intent: int


class Data(Header):
    """One commit: all its files become visible at once.

    ``watermarks``: by group id all that the lane has promised by now; not written if it has promised nothing.
    """

    kind: Literal["DATA"] = "DATA"
    stream: str
    query_id: str
    batch: int
    rows: int
    rows_ignored: int
    source: dict[str, Any]
    files: list[LogFile]
    watermarks: dict[int, Promise] = Field(default_factory=dict)


TableEntry = (
    Create
    | LaneAdd
    | Schema
    | Plan
    | Abort
    | Base
    | Fold
    | Savepoint
    | Release
    | Intent
    | Done
    | Mark
    | CleanIntent
    | CleanDone
)
LaneEntry = Claim | Data
Entry = TableEntry | LaneEntry

_ADAPTER: Final[TypeAdapter[Entry]] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])
_TABLE_KINDS: Final = get_args(TableEntry)
_KINDS: Final = frozenset(kind.model_fields["kind"].default for kind in (*_TABLE_KINDS, *get_args(LaneEntry)))

_LEFT_OUT: Final = ("watermarks", "archived")
"""Not written where they are empty."""


class Unresolved(Header):
    """An entry of the table lane whose list is in a sidecar that has not been read.

    Attributes:
        sidecar: Where the list is.
        outline: The entry with an empty list; `storage.core.log.sidecar_codec.resolve` makes the whole entry of it.
    """

    sidecar: Sidecar
    outline: Base | Fold | Intent


def list_of(entry: Entry) -> Sequence[SliceFile] | Sequence[FoldedGroup]:
    """The list of an entry that may be stored in a sidecar; empty for kinds that have none."""
    match entry:
        case Base():
            return entry.slices
        case Fold():
            return entry.file_groups
        case Intent() if entry.restore is not None:
            return entry.restore.slices
    return ()


def encode_entry(entry: Entry, sidecar: Sidecar | None = None) -> bytes:
    """Bytes of an entry, checksum last; with ``sidecar``, which refers to its list, in place of the list."""
    left_out: dict[str, Any] = {name: True for name in _LEFT_OUT if not getattr(entry, name, True)}
    if sidecar is not None:
        left_out |= {"slices": True, "file_groups": True, "restore": {"slices": True}}
    values = entry.model_dump(exclude=left_out)
    if sidecar is not None:
        holder, member = _list_member(values)
        holder[member] = sidecar.model_dump()
    body = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    return body + _CHECKSUM_PREFIX + hashlib.sha256(body).hexdigest().encode() + b'"}'


def decode_entry(data: bytes, lane: LaneName, seq: int) -> Entry | Unresolved:
    """The entry in slot ``seq`` of ``lane``; `Unresolved` if its list is in a sidecar.

    Raises:
        CorruptData: The bytes are damaged, or belong to another slot.
        UnsupportedFormat: A newer version wrote it.
    """
    where = f"entry {seq} of {f'lane {lane!r}' if lane else 'the table lane'}"
    body, end = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if end != _CHECKSUM_PREFIX + hashlib.sha256(body).hexdigest().encode() + b'"}':
        raise CorruptData(
            f"{where} is damaged: its checksum does not match its {len(data)} bytes",
            hint="restore the object from a copy of the store; weft never rewrites an entry",
        )
    try:
        values = json.loads(body + b"}")
    except ValueError as error:
        raise CorruptData(f"{where} is not JSON: {error}", hint="its writer was broken: report it") from error
    if values.get("kind") not in _KINDS:
        raise UnsupportedFormat(f"{where} is of kind {values.get('kind')!r}", hint="upgrade weft to read this table")
    if values["kind"] == "CREATE" and values.get("format_version") != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{where}: the table has format version {values.get('format_version')}, and this version of weft reads and "
            f"writes format version {FORMAT_VERSION}",
            hint="open the table with the version of weft that wrote it, or write its rows to a new table",
        )
    try:
        sidecar = _take_sidecar(values)
        entry = _ADAPTER.validate_python(values)
    except ValidationError as error:
        raise UnsupportedFormat(
            f"{where} ({values['kind']}) is not of a shape that this version knows: {error.errors()[0]['loc']}: "
            f"{error.errors()[0]['msg']}",
            hint="upgrade weft to read this table",
        ) from None
    if (entry.lane, entry.seq) != (lane, seq) or isinstance(entry, _TABLE_KINDS) == bool(lane):
        raise CorruptData(
            f"{where} says it is {entry.kind} {entry.seq} of lane {entry.lane!r}", hint="an object was copied or moved"
        )
    if sidecar is not None and isinstance(entry, Base | Fold | Intent):
        header = {name: getattr(entry, name) for name in Header.model_fields}
        return Unresolved(**header, sidecar=sidecar, outline=entry)
    return entry


def _take_sidecar(values: dict[str, Any]) -> Sidecar | None:
    """The sidecar that stands in the place of an entry's list, which is left empty; None where the list is there."""
    holder, member = _list_member(values)
    if not isinstance(holder.get(member), dict):
        return None
    sidecar = Sidecar.model_validate(holder[member])
    holder[member] = []
    return sidecar


def _list_member(values: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The member of an entry's JSON that holds its list, and the object that has the member."""
    restore = values.get("restore")
    holder = restore if isinstance(restore, dict) else values
    return holder, "file_groups" if values["kind"] == "FOLD" else "slices"
