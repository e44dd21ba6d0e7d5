"""Changes of a table's schema: one model for each kind, and how it edits the configuration of the table.

The methods of `storage.Table`, the commands of ``weft alter``, the procedures of the catalog and ``ALTER TABLE`` have
the fields of these models as parameters. `storage.services.schema_changes` checks the edited configuration as a whole,
like that of a new table, and publishes it. A change that the table already has edits nothing. Nothing is dropped,
renamed, reordered or narrowed, because writers with the old schema continue (PROTOCOL.md, "Schema changes").
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, ValidatorFunctionWrapHandler
from pydantic import model_validator as validator

from storage.config_file import describe_problems, wrong_fields
from storage.core.modes import mode_of
from storage.core.schema.evolution import widens
from storage.core.schema.table_schema import TableSchema
from storage.core.types import format_type, parse_type
from storage.errors import Conflict, InvalidInput

Config = dict[str, Any]
"""Plain values of a configuration, from `storage.config.configuration`."""
ColumnName = Annotated[str, "column"]
GroupName = Annotated[str, "group"]
Function = str | Mapping[str, Any] | None
Duration = dt.timedelta | str | None
OnDelete = Literal["group", "row", "ignore"]


class Change(BaseModel):
    """A change of a schema. Its fields are checked when it is made; whether it fits a table, when it is applied.

    Raises:
        InvalidInput: A field is missing, unknown or of a wrong type. The message names every such field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @validator(mode="wrap")
    @classmethod
    def _refuse(cls, fields: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        try:
            return parse(fields)
        except ValidationError as error:
            kind = cls.model_fields["kind"].default
            raise wrong_fields(describe_problems(error, fields, {"": cls}), where=f"{kind}: ") from None

    def words(self) -> str:
        """What the change does, for the log."""
        raise NotImplementedError

    def edit(self, config: Config, schema: TableSchema) -> None:
        """Make the change in a configuration.

        Args:
            config: The configuration of ``schema``, which is changed in place.
            schema: The schema before the change.

        Raises:
            NotFound: The schema lacks a column, group, stream or reference that the change names.
            InvalidInput, Conflict: The change contradicts the schema.
        """
        raise NotImplementedError

    def facts(self, config: Config) -> Mapping[str, Any] | None:
        """What a configuration has in place of what the change adds; None if it has nothing, or nothing is added.

        Whatever is there before the change has to be the same after it.
        """
        return None


class AddColumn(Change):
    """Add a column, the last of the table, to a group."""

    kind: Literal["add_column"] = "add_column"
    group: GroupName = Field(description="Group of the new column.")
    name: str = Field(description="Name of the column.")
    type: str = Field(description="A Spark SQL type name.")
    default: Any = Field(default=None, description="Value shown where the column's group is absent.")
    function: Function = Field(default=None, description="Aggregate function of the column, in an aggregate group.")
    comment: str = Field(default="", description="What the column means.")

    def words(self) -> str:
        return f"add column {self.group}.{self.name} {self.type}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        group = schema.group(self.group)
        if mode_of(group).frozen_columns:
            raise InvalidInput(
                f"group {self.group!r} is merged by {group.merge!r}, which was written for its columns",
                hint="add a group for the new column",
            )
        _put_column(config, schema, self.name, self.group, self.model_dump(include={"type", "default", "comment"}))
        edited = config["groups"][self.group]
        if self.name not in group.columns:
            edited["columns"].append(self.name)
        edited["functions"].pop(self.name, None)
        if self.function is not None:
            edited["functions"][self.name] = self.function

    def facts(self, config: Config) -> Mapping[str, Any] | None:
        column = config["columns"].get(self.name)
        return column and {**column, "function": config["groups"][self.group]["functions"].get(self.name)}


class AddGroup(Change):
    """Add a group of new columns, and say which streams write it."""

    kind: Literal["add_group"] = "add_group"
    name: str = Field(description="Name of the group.")
    columns: Mapping[str, str | Mapping[str, Any]] = Field(description="Its columns, with their types.")
    ordering: Sequence[str] = Field(default=(), description="Columns that order events: the first one counts most.")
    merge: str = Field(default="latest", description="Merge mode.")
    functions: Mapping[str, Any] | None = Field(default=None, description="Functions by column, of an aggregate group.")
    streams: Sequence[str] = Field(
        default=(), description="Streams that write it; commands and procedures add new ones."
    )
    new_streams: Mapping[str, OnDelete] | None = Field(
        default=None, description="New streams that write this group only: name to what their deletes remove."
    )
    state: Mapping[str, str] | None = Field(
        default=None, description="State columns of a custom merger, with their types."
    )

    def words(self) -> str:
        return f"add group {self.name}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        known = schema.group_by_name.get(self.name)
        if known is not None:
            check_same(f"group {self.name!r}", {"columns": set(known.columns)}, {"columns": set(self.columns)})
        for column, spec in self.columns.items():
            _put_column(config, schema, column, self.name, {"type": spec} if isinstance(spec, str) else spec)
        config["groups"][self.name] = {
            "columns": list(self.columns),
            "ordering": list(self.ordering),
            "merge": self.merge,
            "functions": self.functions or {},
            "state": self.state or {},
        }
        for stream in self.streams:
            groups = config["streams"][schema.stream(stream).name]["groups"]
            groups.extend([] if self.name in groups else [self.name])
        for stream, on_delete in (self.new_streams or {}).items():
            AddStream(name=stream, groups=[self.name], on_delete=on_delete).edit(config, schema)

    def facts(self, config: Config) -> Mapping[str, Any] | None:
        group = config["groups"].get(self.name)
        return group and {**group, **{f"column {name}": config["columns"][name] for name in group["columns"]}}


class AddStream(Change):
    """Add a stream that writes existing groups."""

    kind: Literal["add_stream"] = "add_stream"
    name: str = Field(description="Name of the stream.")
    groups: Annotated[Sequence[str], "group"] = Field(description="Groups that it writes.")
    on_delete: OnDelete = Field(
        default="group", description="What its deletes remove: group, row, or ignore for nothing."
    )

    def words(self) -> str:
        return f"add stream {self.name}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        for known in schema.streams:
            if known.name == self.name:
                now = {"groups": set(known.groups), "on_delete": known.on_delete}
                wanted = {"groups": set(self.groups), "on_delete": self.on_delete}
                check_same(f"stream {self.name!r}", now, wanted)
                return
        config["streams"][self.name] = {"groups": list(self.groups), "on_delete": self.on_delete}


class WidenColumn(Change):
    """Change a column to a wider type."""

    kind: Literal["widen_column"] = "widen_column"
    name: ColumnName = Field(description="Name of the column.")
    type: str = Field(description="A Spark SQL type name.")

    def words(self) -> str:
        return f"widen column {self.name} to {format_type(parse_type(self.type))}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        target, column = parse_type(self.type), schema.column(self.name)
        if column.type != target and not widens(column.type, target):
            raise InvalidInput(
                f"column {self.name!r} is {format_type(column.type)}, and {format_type(target)} is not a wider form of "
                "it",
                hint="tinyint < smallint < int < bigint, float < double, decimal(p,s) < decimal(more,s); "
                "for any other type add a column",
            )
        group = schema.group_of_column.get(self.name)
        if column.type != target and group is not None and mode_of(group).frozen_columns:
            raise InvalidInput(
                f"column {self.name!r}: group {group.name!r} is merged by {group.merge!r}, which was written for its "
                "types",
                hint="add a group with a column of the wider type",
            )
        config["columns"][self.name]["type"] = self.type


class SetDefault(Change):
    """Set the value that a column shows where its group is absent."""

    kind: Literal["set_default"] = "set_default"
    name: ColumnName = Field(description="Name of the column.")
    value: Any = Field(default=None, description="The value.")

    def words(self) -> str:
        return f"set default of {self.name}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["columns"][schema.column(self.name).name]["default"] = self.value


class SetComment(Change):
    """Say what the table, or a column, is for."""

    kind: Literal["set_comment"] = "set_comment"
    comment: str = Field(description='The comment; "" removes it.')
    column: ColumnName | None = Field(default=None, description="Name of a column; the table if left out.")

    def words(self) -> str:
        return "set comment" if self.column is None else f"set comment of {self.column}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        target = config if self.column is None else config["columns"][schema.column(self.column).name]
        target["comment"] = self.comment


class SetTtl(Change):
    """Set how long rows and deletes are kept, instead of the setting before. Services of the table apply it."""

    kind: Literal["set_ttl"] = "set_ttl"
    rows: Duration = Field(default=None, description="Age at which rows expire, for example 90 days.")
    by: ColumnName | None = Field(
        default=None, description="Column that says how old a row is; by default its last event counts."
    )
    unit: str | None = Field(default=None, description="Of an integer column: seconds, milliseconds, microseconds.")
    deletes: Duration = Field(
        default=None, description="How long deletes stay known after their commit; by default as long as rows."
    )
    within: Duration = Field(
        default=None, description="What is older is removed within this time; by default a tenth of the shorter."
    )

    def _ttl(self) -> dict[str, Any] | None:
        return self.model_dump(exclude={"kind"}, exclude_none=True) or None

    def words(self) -> str:
        return "keep rows for ever" if self._ttl() is None else "set time to live"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["ttl"] = self._ttl()


class SetOverlays(Change):
    """Let compactions write only the column groups that have changed, beside the base files (storage/FORMAT.md)."""

    kind: Literal["set_overlays"] = "set_overlays"
    on: bool = Field(description="Whether compactions may write overlays.")

    def words(self) -> str:
        return "compactions write overlays" if self.on else "compactions write no overlays"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["overlays"] = self.on


class SetIndex(Change):
    """Let compactions write Bloom filters of these columns, by which reads with COLUMN = VALUE skip row groups."""

    kind: Literal["set_index"] = "set_index"
    columns: Sequence[str] = Field(description="Names of columns.")

    def words(self) -> str:
        return f"index {', '.join(self.columns)}" if self.columns else "index no column"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["index"] = list(self.columns)


class AddReference(Change):
    """Show the columns of another table beside those of this one, joined by a foreign key."""

    kind: Literal["add_reference"] = "add_reference"
    name: str = Field(description="Name of the reference.")
    table: str = Field(description="Location of the other table; a relative path starts at the location of this table.")
    on: Sequence[str] | str = Field(description="Columns that hold the key of the other table, in order.")
    columns: Sequence[str] | None = Field(default=None, description="Columns of the other table to show; default: all.")
    prefix: str | None = Field(default=None, description="Put before these names; default: NAME_.")

    def words(self) -> str:
        return f"add reference {self.name} to {self.table}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["references"][self.name] = self.model_dump(exclude={"kind", "name"}, exclude_none=True)

    def facts(self, config: Config) -> Mapping[str, Any] | None:
        reference: Mapping[str, Any] | None = config["references"].get(self.name)
        return reference


class DropReference(Change):
    """Drop a reference. Older snapshots keep its columns."""

    kind: Literal["drop_reference"] = "drop_reference"
    name: str = Field(description="Name of the reference.")

    def words(self) -> str:
        return f"drop reference {self.name}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        del config["references"][schema.reference(self.name).name]


AnyChange = (
    AddColumn
    | AddGroup
    | AddStream
    | WidenColumn
    | SetDefault
    | SetComment
    | SetTtl
    | SetOverlays
    | SetIndex
    | AddReference
    | DropReference
)
CHANGES: Final[Mapping[str, type[Change]]] = {
    model.model_fields["kind"].default: model for model in get_args(AnyChange)
}
"""The model of each kind."""
_PARSER: Final[TypeAdapter[AnyChange]] = TypeAdapter(Annotated[AnyChange, Field(discriminator="kind")])


def parse_change(fields: Change | Mapping[str, Any]) -> AnyChange:
    """A change from its fields and its ``kind``, such as ``add_column``; a change is returned as it is.

    Raises:
        InvalidInput: There is no such kind, or a field is missing, unknown or of a wrong type.
    """
    try:
        return _PARSER.validate_python(fields)
    except ValidationError:
        kind = fields.get("kind") if isinstance(fields, Mapping) else fields
        raise InvalidInput(
            f"a change of a schema: the kind {kind!r} is unknown", hint=f"known: {', '.join(CHANGES)}"
        ) from None


def check_same(what: str, now: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to add something that the table already has with other properties.

    Raises:
        Conflict: A property differs.
    """
    differing = [
        (part, _shown(now[part]), _shown(wanted[part])) for part in now if _shown(now[part]) != _shown(wanted[part])
    ]
    if differing:
        raise Conflict(
            f"{what} already exists, with {'; '.join(f'{part} {old}, not {new}' for part, old, new in differing)}",
            hint="widen_column widens a type, set_default and set_comment change defaults and comments; "
            "for anything else choose another name",
        )


def _shown(value: object) -> str:
    return ", ".join(sorted(value)) if isinstance(value, set) else repr(value)


def _put_column(config: Config, schema: TableSchema, name: str, group: str, spec: Mapping[str, Any]) -> None:
    """Put a column of a group into a configuration. The comment of a known one stays if the request has none.

    Raises:
        Conflict: The name is that of a key column, or of a column of another group.
    """
    if name in schema.key:
        raise Conflict(f"column {name!r} is already a key column", hint="choose another name")
    owner = schema.group_of_column.get(name)
    if owner is not None and owner.name != group:
        raise Conflict(f"column {name!r} is already in group {owner.name!r}", hint="choose another name")
    known = schema.column_by_name.get(name)
    comment = spec.get("comment") or ("" if known is None else known.comment)
    config["columns"][name] = {**spec, "comment": comment}
