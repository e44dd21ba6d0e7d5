"""Changes of a table's schema: one model for each kind of change, which edits the configuration of the table.

The methods of `weft.Table`, the commands of ``weft alter``, the procedures of the catalog and ``ALTER TABLE`` have
the fields of these models as parameters. `weft.storage.services.schema.schema_changes` checks the edited configuration
as a whole, like that of a new table, and publishes it. A change that the table already has edits nothing. No column is
dropped, renamed, reordered or narrowed, because writers with the old schema continue (PROTOCOL.md, "Schema changes").
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, model_validator

from weft.storage.config.config_file import describe_problems, wrong_fields
from weft.storage.core.modes import mode_of
from weft.storage.core.schema.evolution import widens
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import format_type, parse_type
from weft.storage.errors import Conflict, InvalidInput

Config = dict[str, Any]
"""Plain values of a configuration, from `weft.storage.config.table_config.configuration`."""
ColumnName = Annotated[str, "column"]
GroupName = Annotated[str, "group"]
Function = str | Mapping[str, Any] | None
Duration = dt.timedelta | str | None
OnDelete = Literal["group", "row", "ignore"]


class Change(BaseModel):
    """A change of a schema. Its fields are checked at creation, and against the table when it is applied.

    Raises:
        InvalidInput: A field is missing, unknown or of a wrong type. The message names every such field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    text: ClassVar[str] = ""
    """Description of the change for the log, as a format of its fields."""

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, fields: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        try:
            return parse(fields)
        except ValidationError as error:
            raise wrong_fields(describe_problems(error, fields, {"": cls}), where=f"{cls.kind()}: ") from None

    @classmethod
    def kind(cls) -> str:
        """Name of this kind of change, such as ``add_column``; also the name of the method and the procedure."""
        return re.sub("(?<=.)(?=[A-Z])", "_", cls.__name__).lower()

    def words(self) -> str:
        """Description of the change, for the log."""
        return self.text.format_map(dict(self))

    def edit(self, config: Config, schema: TableSchema) -> None:
        """Edit a configuration.

        Args:
            config: The configuration of ``schema``; it is changed in place.
            schema: The schema before the change.

        Raises:
            NotFound: The schema lacks a column, group, stream or reference that the change names.
            InvalidInput, Conflict: The change contradicts the schema.
        """
        raise NotImplementedError

    def facts(self, config: Config) -> Mapping[str, Any] | None:
        """What a configuration has under the name that the change adds; None if nothing, or if it adds nothing.

        If this exists before the change, it must be equal after the change.
        """
        return None


class AddColumn(Change):
    """Add a column, the last of the table, to a group."""

    text = "add column {group}.{name} {type}"
    group: GroupName
    """Group of the new column."""
    name: str
    """Name of the column."""
    type: str
    """A Spark SQL type name."""
    default: Any = None
    """Value shown where the column's group is absent."""
    function: Function = None
    """Aggregate function of the column, in an aggregate group."""
    comment: str = ""
    """What the column means."""

    def edit(self, config: Config, schema: TableSchema) -> None:
        group = schema.group(self.group)
        if mode_of(group).frozen_columns:
            raise InvalidInput(
                f"group {self.group!r} is merged by {group.merge!r}, which was written for its columns",
                hint="add a group for the new column",
            )
        _put_column(config, schema, self.name, self.group, self.model_dump(include={"type", "default", "comment"}))
        group_config = config["groups"][self.group]
        if self.name not in group.columns:
            group_config["columns"].append(self.name)
        if self.function is None:
            group_config["functions"].pop(self.name, None)
        else:
            group_config["functions"][self.name] = self.function  # an existing function keeps its position

    def facts(self, config: Config) -> Mapping[str, Any] | None:
        column = config["columns"].get(self.name)
        return column and {**column, "function": config["groups"][self.group]["functions"].get(self.name)}


class AddGroup(Change):
    """Add a group of new columns, and say which streams write it."""

    text = "add group {name}"
    name: str
    """Name of the group."""
    columns: Mapping[str, str | Mapping[str, Any]]
    """Its columns, with their types."""
    ordering: Sequence[str] = ()
    """Columns that order events: the first one counts most."""
    merge: str = "latest"
    """Merge mode."""
    functions: Mapping[str, Any] | None = None
    """Functions by column, of an aggregate group."""
    streams: Sequence[str] = ()
    """Streams that write it; commands and procedures add new ones."""
    new_streams: Mapping[str, OnDelete] | None = None
    """New streams that write this group only: name to what their deletes remove."""
    state: Mapping[str, str] | None = None
    """State columns of a custom merger, with their types."""

    def edit(self, config: Config, schema: TableSchema) -> None:
        existing = config["groups"].get(self.name, {})
        if existing:
            check_same(f"group {self.name!r}", {"columns": set(existing["columns"])}, {"columns": set(self.columns)})
        for column, spec in self.columns.items():
            _put_column(config, schema, column, self.name, {"type": spec} if isinstance(spec, str) else spec)
        config["groups"][self.name] = {
            "columns": list(existing.get("columns", self.columns)),
            "ordering": list(self.ordering),
            "merge": self.merge,
            "functions": _ordered_as(existing.get("functions", {}), self.functions or {}),
            "state": _ordered_as(existing.get("state", {}), self.state or {}),
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

    text = "add stream {name}"
    name: str
    """Name of the stream."""
    groups: Annotated[Sequence[str], "group"]
    """Groups that it writes."""
    on_delete: OnDelete = "group"
    """What its deletes remove: group, row, or ignore for nothing."""

    def edit(self, config: Config, schema: TableSchema) -> None:
        for stream in schema.streams:
            if stream.name == self.name:
                existing = {"groups": set(stream.groups), "on_delete": stream.on_delete}
                requested = {"groups": set(self.groups), "on_delete": self.on_delete}
                check_same(f"stream {self.name!r}", existing, requested)
                return
        config["streams"][self.name] = {"groups": list(self.groups), "on_delete": self.on_delete}


class WidenColumn(Change):
    """Change a column to a wider type."""

    name: ColumnName
    """Name of the column."""
    type: str
    """A Spark SQL type name."""

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

    text = "set default of {name}"
    name: ColumnName
    """Name of the column."""
    value: Any = None
    """The value."""

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["columns"][schema.column(self.name).name]["default"] = self.value


class SetComment(Change):
    """Say what the table, or a column, is for."""

    comment: str
    """The comment; "" removes it."""
    column: Annotated[str | None, "column"] = None
    """Name of a column; the table if left out."""

    def words(self) -> str:
        return "set comment" if self.column is None else f"set comment of {self.column}"

    def edit(self, config: Config, schema: TableSchema) -> None:
        target = config if self.column is None else config["columns"][schema.column(self.column).name]
        target["comment"] = self.comment


class SetTtl(Change):
    """Set how long rows and deletes are kept, instead of the setting before. Services of the table apply it."""

    rows: Duration = None
    """Age at which rows expire, for example 90 days."""
    by: Annotated[str | None, "column"] = None
    """Column that says how old a row is; by default its last event counts."""
    unit: str | None = None
    """Of an integer column: seconds, milliseconds, microseconds."""
    deletes: Duration = None
    """How long deletes stay known after their commit; by default as long as rows."""
    within: Duration = None
    """What is older is removed within this time; by default a tenth of the shorter."""

    def ttl(self) -> dict[str, Any] | None:
        """The setting, as in the configuration; None to keep rows and deletes for ever."""
        return self.model_dump(exclude_none=True) or None

    def words(self) -> str:
        return "keep rows for ever" if self.ttl() is None else "set time to live"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["ttl"] = self.ttl()


class SetOverlays(Change):
    """Let compactions write only the column groups that have changed, beside the base files (storage/FORMAT.md)."""

    on: bool
    """Whether compactions may write overlays."""

    def words(self) -> str:
        return "compactions write overlays" if self.on else "compactions write no overlays"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["overlays"] = self.on


class SetIndex(Change):
    """Let compactions write Bloom filters of these columns, by which reads with COLUMN = VALUE skip row groups."""

    columns: Sequence[str]
    """Names of columns."""

    def words(self) -> str:
        return f"index {', '.join(self.columns)}" if self.columns else "index no column"

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["index"] = list(self.columns)


class AddReference(Change):
    """Show the columns of another table beside those of this one, joined by a foreign key."""

    text = "add reference {name} to {table}"
    name: str
    """Name of the reference."""
    table: str
    """Location of the other table; a relative path starts at the location of this table."""
    on: Sequence[str] | str
    """Columns that hold the key of the other table, in order."""
    columns: Sequence[str] | None = None
    """Columns of the other table to show; default: all."""
    prefix: str | None = None
    """Put before these names; default: NAME_."""

    def edit(self, config: Config, schema: TableSchema) -> None:
        config["references"][self.name] = self.model_dump(exclude={"name"}, exclude_none=True)

    def facts(self, config: Config) -> Mapping[str, Any] | None:
        return cast("Mapping[str, Any] | None", config["references"].get(self.name))


class DropReference(Change):
    """Drop a reference. Older snapshots keep its columns."""

    text = "drop reference {name}"
    name: str
    """Name of the reference."""

    def edit(self, config: Config, schema: TableSchema) -> None:
        del config["references"][schema.reference(self.name).name]


CHANGES: Final[Mapping[str, type[Change]]] = {model.kind(): model for model in Change.__subclasses__()}
"""The model of each kind."""


def parse_change(fields: Change | Mapping[str, Any]) -> Change:
    """A change from its fields and its ``kind``, such as ``add_column``; a change is returned as it is.

    Raises:
        InvalidInput: There is no such kind, or a field is missing, unknown or of a wrong type.
    """
    if isinstance(fields, Change):
        return fields
    model = CHANGES.get(kind := fields.get("kind", ""))
    if model is None:
        raise InvalidInput(f"schema change: the kind {kind!r} is unknown", hint=f"use one of: {', '.join(CHANGES)}")
    return model.model_validate({name: value for name, value in fields.items() if name != "kind"})


def check_same(subject: str, existing: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Refuse to add something that the table already has with other properties.

    Raises:
        Conflict: A property differs.
    """
    differing = []
    for name, value in existing.items():
        old, new = _format_property(value), _format_property(requested[name])
        if old != new:
            differing.append(f"{name} {old}, not {new}")
    if differing:
        raise Conflict(
            f"{subject} already exists, with {'; '.join(differing)}",
            hint="widen_column widens a type, set_default and set_comment change defaults and comments; "
            "for anything else choose another name",
        )


def _format_property(value: object) -> str:
    if isinstance(value, set):
        return ", ".join(sorted(value))
    return repr(dict(sorted(value.items())) if isinstance(value, dict) else value)


def _ordered_as(existing: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, existing names first and in their order, because equal schemas have equal orders."""
    return {name: values[name] for name in (*existing, *values) if name in values}


def _put_column(config: Config, schema: TableSchema, name: str, group: str, spec: Mapping[str, Any]) -> None:
    """Put a column of a group into a configuration. An existing column keeps its comment if ``spec`` has none.

    Raises:
        Conflict: A key column, or a column of another group, has this name.
    """
    if name in schema.key:
        raise Conflict(f"column {name!r} is already a key column", hint="choose another name")
    owner = schema.group_of_column.get(name)
    if owner is not None and owner.name != group:
        raise Conflict(f"column {name!r} is already in group {owner.name!r}", hint="choose another name")
    existing = schema.column_by_name.get(name)
    comment = spec.get("comment") or ("" if existing is None else existing.comment)
    config["columns"][name] = {**spec, "comment": comment}
