"""The table's schema: columns, groups and streams with ids that never change and are never reused.

A schema is built from a checked configuration (`weft.storage.config.table_config`), or read from a CREATE or SCHEMA
entry. Only this module derives the Arrow schemas of tables, log files and slices from it, so that writers, compactions
and readers agree on them (FORMAT.md, "Schemas").
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter, ValidationError

from weft.storage.core import names
from weft.storage.core.model import Column, Group, Reference, Stream, Ttl, make_field
from weft.storage.core.modes import mode_of
from weft.storage.core.modes.functions import input_type
from weft.storage.core.schema.stored_members import first_problem
from weft.storage.core.types import decode_scalar, encode_scalar, format_type, parse_type
from weft.storage.errors import NotFound, UnsupportedFormat

# Field ids of hidden columns are far above those of user columns, and are derived from the column.
_HIDDEN_EVENT_FIELDS: Final = {
    names.KEY: make_field(names.KEY, pa.binary(), 1_000_000, nullable=False),
    names.OP: make_field(names.OP, pa.int8(), 1_000_001, nullable=False),
    names.SUPPLIED: make_field(names.SUPPLIED, pa.list_(pa.field("element", pa.int32())), 1_000_002),
}
_GROUP_FIELD_IDS: Final = 2_000_000
_IDS_PER_GROUP: Final = 10_000
_COLUMN_FIELD_IDS: Final = 1_000_000_000
_IDS_PER_COLUMN: Final = 1_000

REFERENCES: Final = "references"
"""Reader feature of a table that has references to other tables."""


T = TypeVar("T")


@dataclass(frozen=True)
class TableSchema:
    """The schema of a table; immutable.

    Attributes:
        key: Names of the key columns, in the order of the configuration.
        partition_by: Names of the partition columns, in the order of the configuration.
        bucket_bits: log2 of the number of buckets.
        columns: User columns, in table order.
        groups: Column groups, by ascending id.
        streams: Streams, by ascending id.
        ttl: How long rows and deletes are kept; None for ever.
        references: References to other tables, in the order of their columns in the table.
        comment: Description of the table for people; may be empty.
        overlays: Whether compactions may write overlays (FORMAT.md, "Overlays").
        index: Columns for which compactions write Bloom filters, in table order.
        created_bits: log2 of the number of buckets that the table was created with; None if it was not changed since.
    """

    # Also for the columns, groups and other parts, which are plain dataclasses.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid", strict=True)
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    bucket_bits: int
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    streams: tuple[Stream, ...]
    ttl: Ttl | None = None
    references: tuple[Reference, ...] = ()
    comment: str = ""
    overlays: bool = False
    index: tuple[str, ...] = ()
    created_bits: int | None = None

    @cached_property
    def column_by_name(self) -> Mapping[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def group_by_name(self) -> Mapping[str, Group]:
        return {group.name: group for group in self.groups}

    @cached_property
    def group_of_column(self) -> Mapping[str, Group]:
        return {name: group for group in self.groups for name in group.columns}

    @cached_property
    def arrow(self) -> pa.Schema:
        """Schema of reads: the user columns; key columns are not nullable."""
        return pa.schema([column.field.with_nullable(column.name not in self.key) for column in self.columns])

    @cached_property
    def has_sort_key(self) -> bool:
        """Whether files have the hidden binary key, which composite and decimal keys need for sorting."""
        return len(self.key) > 1 or pa.types.is_decimal(self.column_by_name[self.key[0]].type)

    @cached_property
    def changed(self) -> int:
        """Slot of the newest entry that changed a column. Slices of this revision or later need no adaptation."""
        return max(column.changed for column in self.columns)

    @cached_property
    def added(self) -> frozenset[str]:
        """Columns that were added to an existing group. Batches may always omit them."""
        by_name = self.column_by_name
        return frozenset(
            name
            for group in self.groups
            for name in group.columns
            if by_name[name].since > min(by_name[other].since for other in group.columns)
        )

    @property
    def reader_features(self) -> list[str]:
        """The features that a version must support to read the table, sorted."""
        modes = {feature for group in self.groups for feature in mode_of(group).features(group)}
        return sorted(modes | {REFERENCES} if self.references else modes)

    @cached_property
    def reference_by_name(self) -> Mapping[str, Reference]:
        return {reference.name: reference for reference in self.references}

    def reference(self, name: str) -> Reference:
        """Look up a reference by its name.

        Raises:
            NotFound: The name does not exist; the hint lists the names that exist.
        """
        return _find_by_name(self.reference_by_name, name, "reference")

    @property
    def sort_column(self) -> str:
        """The column by which files are sorted."""
        return names.KEY if self.has_sort_key else self.key[0]

    def field(self, name: str) -> pa.Field:
        """The field of a column in `arrow`."""
        return self.arrow.field(name)

    def column(self, name: str) -> Column:
        """Look up a column by its name.

        Raises:
            NotFound: The name does not exist; the hint lists the names that exist.
        """
        return _find_by_name(self.column_by_name, name, "column")

    def group(self, name: str) -> Group:
        """Look up a group by its name.

        Raises:
            NotFound: The name does not exist; the hint lists the names that exist.
        """
        return _find_by_name(self.group_by_name, name, "group")

    def stream(self, name: str) -> Stream:
        """Look up a stream by its name.

        Raises:
            NotFound: The name does not exist; the hint lists the names that exist.
        """
        return _find_by_name({stream.name: stream for stream in self.streams}, name, "stream")

    def stream_columns(self, stream: Stream) -> tuple[str, ...]:
        """Key columns, then the columns of the stream's groups, in table order."""
        column_names = {name for group in stream.groups for name in self.group_by_name[group].columns}
        return self.key + tuple(column.name for column in self.columns if column.name in column_names)

    @cached_property
    def event_types(self) -> Mapping[str, pa.DataType]:
        """Types of columns in batches and log files: as declared, or the element type for collected values."""
        types = {column.name: column.type for column in self.columns}
        for group in self.groups:
            types |= {f.column: input_type(f, types[f.column]) for f in group.functions}
        return types

    def event_schema(self, columns: Iterable[str]) -> pa.Schema:
        """Schema of an event-form log file with these columns, which may be hidden ones."""
        return pa.schema(
            [_HIDDEN_EVENT_FIELDS.get(name) or self.field(name).with_type(self.event_types[name]) for name in columns]
        )

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row of a slice in memory, without the characters of texts and the elements of lists."""
        return sum(_width(field.type) for field in self.slice)

    @cached_property
    def slice(self) -> pa.Schema:
        """Schema of base and shadow files: user columns, then the hidden state of every group."""
        fields = [self.field(column.name) for column in self.columns]
        if self.has_sort_key:
            fields.append(_HIDDEN_EVENT_FIELDS[names.KEY])
        for group in self.groups:
            fields.extend(self.state_fields(group))
        return pa.schema(fields)

    def group_columns(self, group: Group) -> tuple[str, ...]:
        """The columns of one column group in base and shadow files: its user columns, then its hidden state."""
        return (*group.columns, *(field.name for field in self.state_fields(group)))

    def state_fields(self, group: Group) -> tuple[pa.Field, ...]:
        """Hidden slice columns of one column group, which its merge mode defines.

        Field ids of the state of a column depend only on that column, so adding or widening other columns does not
        change them.
        """
        state = mode_of(group).state(group, self.column_by_name)
        ids: dict[str, int] = {}
        for column in (self.column_by_name[name] for name in group.values):
            hidden = (name for name in state if name.startswith(names.column_state(column.id, "")))
            ids |= {name: _COLUMN_FIELD_IDS + column.id * _IDS_PER_COLUMN + i for i, name in enumerate(hidden)}
        rest = (name for name in state if name not in ids)
        ids |= {name: _GROUP_FIELD_IDS + group.id * _IDS_PER_GROUP + i for i, name in enumerate(rest)}
        return tuple(make_field(name, arrow_type, ids[name]) for name, arrow_type in state.items())

    def to_json(self) -> dict[str, Any]:
        """The schema as in a CREATE or SCHEMA entry; members with their default value are left out."""
        columns = tuple(dataclasses.replace(column, default=encode_scalar(column.default)) for column in self.columns)
        optional = (field for field in dataclasses.fields(self) if field.default is not dataclasses.MISSING)
        return _STORED.dump_python(
            dataclasses.replace(self, columns=columns),
            mode="json",
            exclude={
                **{field.name: True for field in optional if getattr(self, field.name) == field.default},
                "columns": {i: {"comment"} for i, column in enumerate(columns) if not column.comment},
            },
            fallback=format_type,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        """The schema of a CREATE or SCHEMA entry.

        Raises:
            UnsupportedFormat: A member is unknown, missing or of another type: a newer version wrote it.
        """
        try:
            schema = _STORED.validate_json(json.dumps(data))  # as JSON, because a strict tuple is no list of Python
        except ValidationError as error:
            raise UnsupportedFormat(f"the table's schema {first_problem(error)}", hint="upgrade weft") from None
        columns = []
        for column in schema.columns:
            arrow_type = parse_type(str(column.type))  # it is still the stored text
            default = decode_scalar(column.default, arrow_type)
            columns.append(dataclasses.replace(column, type=arrow_type, default=default))
        return dataclasses.replace(schema, columns=tuple(columns))


_STORED: Final = TypeAdapter(TableSchema)


def _find_by_name(by_name: Mapping[str, T], name: str, kind: str) -> T:
    if name not in by_name:
        raise NotFound(f"the table has no {kind} {name!r}", hint=f"{kind}s: {', '.join(by_name)}")
    return by_name[name]


def _width(arrow_type: pa.DataType) -> int:
    """Bytes of a value in memory, without parts of variable width."""
    if pa.types.is_struct(arrow_type):
        return sum(_width(field.type) for field in arrow_type)
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:  # texts, lists and maps have offsets
        return 4
