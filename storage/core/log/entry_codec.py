"""The encoding of log entries (FORMAT.md, "Entries").

Decoding is strict: a damaged entry raises `CorruptData`, an entry with an unknown kind, member or feature raises
`UnsupportedFormat`, and nothing is skipped. The checksum is the last member and covers every byte before it, so it is
verified without encoding the entry again. A long list of an entry may be in a sidecar
(`weft.storage.core.log.sidecar_codec`); then the entry is decoded as `Unresolved`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from weft.storage.core.log.entries import (
    FORMAT_VERSION,
    Base,
    Entry,
    Fold,
    FoldedGroup,
    Header,
    Intent,
    LaneEntry,
    TableEntry,
)
from weft.storage.core.log.file_refs import Sidecar, SliceFile
from weft.storage.core.names import LaneName, describe_lane
from weft.storage.core.schema.stored_members import first_problem
from weft.storage.errors import CorruptData, UnsupportedFormat

_CHECKSUM_PREFIX: Final = b',"sha256":"'
_CHECKSUM_BYTES: Final = len(_CHECKSUM_PREFIX) + 64 + len(b'"}')


_ADAPTER: Final[TypeAdapter[Entry]] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])
_TABLE_KINDS: Final = get_args(TableEntry)
_KINDS: Final = frozenset(kind.model_fields["kind"].default for kind in (*_TABLE_KINDS, *get_args(LaneEntry)))

_OMITTED_IF_EMPTY: Final = ("watermarks", "archived", "rewrites", "references", "reserves_ms", "for_batch", "finishes")


class Unresolved(Header):
    """An entry of the table lane whose list is in a sidecar that has not been read.

    Attributes:
        sidecar: Where the list is.
        outline: The entry with an empty list; `weft.storage.core.log.sidecar_codec.resolve` makes the whole entry of
            it.
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
    """Encode an entry, with the checksum as the last member. A ``sidecar`` replaces the list of the entry."""
    excluded: dict[str, Any] = {name: True for name in _OMITTED_IF_EMPTY if not getattr(entry, name, True)}
    if sidecar is not None:
        excluded |= {"slices": True, "file_groups": True, "restore": {"slices": True}}
    values = entry.model_dump(exclude=excluded)
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
    where = f"entry {seq} of {describe_lane(lane)}"
    body, end = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if end != _CHECKSUM_PREFIX + hashlib.sha256(body).hexdigest().encode() + b'"}':
        raise CorruptData(
            f"{where} is damaged: the checksum does not match its {len(data)} bytes",
            hint="restore the object from a copy of the store; weft never rewrites an entry",
        )
    try:
        values = from_json(body + b"}")  # half the time of the standard library
    except ValueError as error:
        raise CorruptData(f"{where} is not JSON: {error}", hint="report this as a bug of its writer") from error
    if values.get("kind") not in _KINDS:
        raise UnsupportedFormat(
            f"{where} is of kind {values.get('kind')!r}, which this version of weft does not know", hint="upgrade weft"
        )
    if values["kind"] == "CREATE" and values.get("format_version") != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{where}: the table has format version {values.get('format_version')}, and this version of weft reads and "
            f"writes format version {FORMAT_VERSION}",
            hint="open the table with the version of weft that wrote it, or write its rows to a new table",
        )
    try:
        sidecar = _take_sidecar(values)
        entry = _ADAPTER.validate_python(values, context={})
    except ValidationError as error:
        problem = first_problem(error, skipped=1)  # the first part is the kind of the entry
        raise UnsupportedFormat(f"{where} ({values['kind']}) {problem}", hint="upgrade weft") from None
    if (entry.lane, entry.seq) != (lane, seq) or isinstance(entry, _TABLE_KINDS) == bool(lane):
        raise CorruptData(
            f"{where} contains {entry.kind} {entry.seq} of lane {entry.lane!r}",
            hint="an object was copied or moved: restore it from a copy of the store",
        )
    if sidecar is not None and isinstance(entry, Base | Fold | Intent):
        return Unresolved(**entry, sidecar=sidecar, outline=entry)
    return entry


def _take_sidecar(values: dict[str, Any]) -> Sidecar | None:
    """The sidecar that an entry has in place of its list; replaces it by an empty list. None if it has no sidecar."""
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
