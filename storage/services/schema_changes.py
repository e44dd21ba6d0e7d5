"""Schema changes while writers are running: adds columns, groups, streams and references, widens types, changes
defaults, comments and the time to live.

A change edits the table's configuration, which is then checked as a whole, like that of a new table. The edit is
applied to the newest schema, and again after every lost race, so concurrent changes are merged: the additions of two
operators are both kept. A change that the table already has publishes nothing; a change that contradicts the table is
refused. Nothing is ever dropped, renamed, reordered or narrowed, because writers with the old schema continue
(PROTOCOL.md, "Schema changes").
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage import mergers
from storage.config import build_schema, configuration, load_config
from storage.core.log.entries import Schema
from storage.core.log.features import reader_features, writer_features
from storage.core.log.table_state import TableState
from storage.core.model import Group
from storage.core.modes import mode_of
from storage.core.schema.evolution import widens
from storage.core.schema.table_schema import TableSchema
from storage.core.types import encode_scalar, format_type, parse_type
from storage.errors import Conflict, InvalidInput
from storage.log.table_log import TableLog
from storage.services.resolve_references import resolve_references
from storage.shown import Shown

Change = Callable[[TableSchema], TableSchema | None]
"""Computes the wanted schema from the newest one, without slots in new columns; None if there is nothing to change."""


@dataclass(frozen=True, slots=True)
class SchemaChange(Shown):
    """The result: ``rev``, the schema revision with the change; ``changed``, False if the table already had it."""

    rev: int
    changed: bool


def add_column(
    table_log: TableLog,
    group: str,
    name: str,
    type: str,  # noqa: A002 - its name in the configuration
    *,
    default: object = None,
    function: str | Mapping[str, Any] | None = None,
    comment: str = "",
) -> SchemaChange:
    """Add a column to a group; it is the last one of the table. Writers may continue without it, which means NULL.

    Args:
        table_log: The table's log.
        group: A group of the table.
        name: Name of the column.
        type: Spark SQL type name.
        default: Value shown where the group is absent; None for NULL. Events from before the column was added show
            NULL.
        function: For a column of an aggregate group, as in the configuration.
        comment: What the column means; empty for none.

    Raises:
        NotFound: The table has no such group.
        InvalidInput: The changed configuration is wrong, or the group has a custom merger.
        Conflict: There is another column of that name. The same column is no error.
    """
    type_name = type

    def change(schema: TableSchema) -> TableSchema | None:
        known = schema.group(group)
        if mode_of(known).frozen_columns:
            raise InvalidInput(
                f"group {group!r} is merged by {known.merge!r}, which was written for its columns",
                hint="add a group for the new column",
            )
        config = configuration(schema)
        _check_free(schema, name, group)
        given = {"type": type_name, "default": default, **({"comment": comment} if comment else {})}
        config["columns"][name] = _with_known_comment(schema, name, given)
        if name not in known.columns:
            config["groups"][group]["columns"].append(name)
        functions = config["groups"][group]["functions"]
        functions.pop(name, None)
        if function is not None:
            functions[name] = function
        wanted = checked_schema(config)
        if name not in known.columns:
            return wanted
        _check_same(f"column {name!r}", _about_column(schema, name), _about_column(wanted, name))
        return None

    return publish_schema(table_log, f"add column {group}.{name} {type_name}", change)


def add_group(
    table_log: TableLog,
    name: str,
    columns: Mapping[str, str | Mapping[str, Any]],
    *,
    ordering: Sequence[str] = (),
    merge: str = "latest",
    functions: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    streams: Sequence[str] = (),
    new_streams: Mapping[str, str] | None = None,
) -> SchemaChange:
    """Add a group of new columns, and name the streams that write it: at least one.

    Args:
        table_log: The table's log.
        name: Name of the group.
        columns: Column name to type name, or to ``{"type": ..., "default": ..., "comment": ...}``.
        ordering: The columns that order its events.
        merge: Merge mode of the group.
        functions: Functions of an aggregate group, by column.
        state: State columns of a custom merger: name to type name.
        streams: Existing streams that write the group from now on; their batches may leave it out.
        new_streams: New streams that write this group only: name to what their deletes mean (``group``, ``row`` or
            ``ignore``).

    Raises:
        NotFound: The table has no such stream.
        InvalidInput: The changed configuration is wrong.
        Conflict: There is another group, column or stream of that name. The same group is no error.
    """
    settings = {
        "ordering": list(ordering),
        "merge": merge,
        "functions": dict(functions or {}),
        "state": dict(state or {}),
    }
    if isinstance(streams, str):
        raise InvalidInput(f"streams: {streams!r} is a string, not a list", hint=f'streams=["{streams}"]')

    def change(schema: TableSchema) -> TableSchema | None:
        known = schema.group_by_name.get(name)
        config = configuration(schema)
        for column, spec in columns.items():
            _check_free(schema, column, name)
            config["columns"][column] = _with_known_comment(schema, column, spec)
        if known is not None:
            _check_same(f"group {name!r}", {"columns": set(known.columns)}, {"columns": set(columns)})
        config["groups"][name] = {"columns": list(columns), **settings}
        for stream in streams:
            written = config["streams"][schema.stream(stream).name]["groups"]
            written.extend([] if name in written else [name])
        for stream, on_delete in (new_streams or {}).items():
            _add_stream(schema, config, stream, [name], on_delete)
        wanted = checked_schema(config)
        added = wanted.group_by_name[name]
        if known is not None:
            _check_same(f"group {name!r}", _about_group(schema, known), _about_group(wanted, added))
            return wanted if wanted.streams != schema.streams else None
        mergers.load(replace(wanted, groups=(added,)), table_log.env.mergers)
        return wanted

    return publish_schema(table_log, f"add group {name}", change)


def add_stream(table_log: TableLog, name: str, groups: Sequence[str], *, on_delete: str = "group") -> SchemaChange:
    """Add a stream that writes existing groups.

    Args:
        table_log: The table's log.
        name: Name of the stream.
        groups: Groups of the table.
        on_delete: What deletes of the stream remove: ``group``, ``row``, or nothing (``ignore``).

    Raises:
        InvalidInput: The changed configuration is wrong: no such group, or delete policies that contradict each other.
        Conflict: There is another stream of that name. The same stream is no error.
    """

    def change(schema: TableSchema) -> TableSchema | None:
        config = configuration(schema)
        _add_stream(schema, config, name, groups, on_delete)
        wanted = checked_schema(config)
        return wanted if wanted.streams != schema.streams else None

    return publish_schema(table_log, f"add stream {name}", change)


def widen_column(table_log: TableLog, name: str, type: str) -> SchemaChange:  # noqa: A002 - its name in the configuration
    """Give a column a wider type: a larger integer, double for float, or a decimal with more digits before the point.

    Args:
        table_log: The table's log.
        name: A column of the table.
        type: Spark SQL type name.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: The type is unknown, does not contain all values of the column, or a custom merger reads the
            column.
    """
    type_name = type
    target = parse_type(type_name)

    def change(schema: TableSchema) -> TableSchema | None:
        column = schema.column(name)
        if column.type == target:
            return None
        if not widens(column.type, target):
            raise InvalidInput(
                f"column {name!r} is {format_type(column.type)}, and {format_type(target)} is not a wider form of it",
                hint="tinyint < smallint < int < bigint, float < double, decimal(p,s) < decimal(more,s); "
                "for any other type add a column",
            )
        group = schema.group_of_column.get(name)
        if group is not None and mode_of(group).frozen_columns:
            raise InvalidInput(
                f"column {name!r}: group {group.name!r} is merged by {group.merge!r}, which was written for its types",
                hint="add a group with a column of the wider type",
            )
        config = configuration(schema)
        config["columns"][name]["type"] = type_name
        return checked_schema(config)

    return publish_schema(table_log, f"widen column {name} to {format_type(target)}", change)


def set_default(table_log: TableLog, name: str, value: object) -> SchemaChange:
    """Set the value that a column shows where its group is absent, in existing rows too.

    Args:
        table_log: The table's log.
        name: A column of the table.
        value: The value; None for NULL.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: The column takes no default, or the value is not of its type.
    """

    def change(schema: TableSchema) -> TableSchema | None:
        before = schema.column(name)
        config = configuration(schema)
        config["columns"][name]["default"] = value
        wanted = checked_schema(config)
        after = wanted.column_by_name[name]
        return None if encode_scalar(after.default) == encode_scalar(before.default) else wanted

    return publish_schema(table_log, f"set default of {name}", change)


def set_comment(table_log: TableLog, comment: str, column: str | None = None) -> SchemaChange:
    """Set the comment of the table or of a column. It says something to people, and changes no read and no file.

    Args:
        table_log: The table's log.
        comment: The text; empty to remove the comment.
        column: A column of the table; None for the table.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: The comment is no string.
    """

    def change(schema: TableSchema) -> TableSchema | None:
        before = schema.comment if column is None else schema.column(column).comment
        config = configuration(schema)
        target = config if column is None else config["columns"][column]
        target["comment"] = comment
        return None if comment == before else checked_schema(config)

    return publish_schema(table_log, "set comment" if column is None else f"set comment of {column}", change)


def set_ttl(
    table_log: TableLog,
    *,
    rows: dt.timedelta | str | None = None,
    by: str | None = None,
    unit: str | None = None,
    deletes: dt.timedelta | str | None = None,
    within: dt.timedelta | str | None = None,
) -> SchemaChange:
    """Set how long rows and deletes are kept, instead of the setting before; without arguments they are kept for ever.

    The service `ttl` of a pipeline, `weft services` and `Table.apply_ttl` remove what is older.

    Args:
        table_log: The table's log.
        rows: Age at which a row expires, as a timedelta or a text such as ``90 days``; None: never.
        by: Column that says how old a row is: a date, a timestamp or an integer. A row without a value in it, and
            every row if this is None, is as old as its last event.
        unit: Unit of an integer column: ``seconds``, ``milliseconds`` or ``microseconds`` since 1970.
        deletes: How long a delete stays known after its commit; None: as long as ``rows``. An older event that comes
            later is new data.
        within: Older rows and deletes are removed within this time; None: a tenth of the shorter time above. A longer
            time costs fewer rewritten files.

    Raises:
        InvalidInput: A duration cannot be read, the column does not exist or is no time, or the arguments contradict
            each other. Nothing was changed.
    """
    given = {"rows": rows, "by": by, "unit": unit, "deletes": deletes, "within": within}
    wanted_ttl = None if all(value is None for value in given.values()) else given

    def change(schema: TableSchema) -> TableSchema | None:
        wanted = checked_schema({**configuration(schema), "ttl": wanted_ttl})
        return wanted if wanted.ttl != schema.ttl else None

    return publish_schema(table_log, "keep rows for ever" if wanted_ttl is None else "set time to live", change)


def add_reference(
    table_log: TableLog,
    name: str,
    table: str,
    on: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    prefix: str | None = None,
) -> SchemaChange:
    """Add a reference to another table, whose columns are then shown beside those of this table.

    Args:
        table_log: The table's log.
        name: Name of the reference.
        table: Location of the other table; a relative path starts at the location of this table.
        on: Columns of this table that hold the key of the other one, in the order of that key.
        columns: Columns of the other table to show; None for all outside its key that it has now.
        prefix: Put before their names; by default the name of the reference and an underscore.

    Raises:
        NotFound: There is no such table or column.
        InvalidInput: The foreign key does not fit the key of the other table, or names clash.
        Conflict: There is another reference of that name. The same reference is no error.
    """

    def change(schema: TableSchema) -> TableSchema | None:
        config = configuration(schema)
        known = config["references"].pop(name, None)
        given = {"table": table, "on": [on] if isinstance(on, str) else list(on), "columns": columns, "prefix": prefix}
        config["references"][name] = {key: value for key, value in given.items() if value is not None}
        others = [each for each in schema.references if each.name != name]
        wanted = resolve_references(table_log.env, load_config(config), others)
        if known is None:
            return wanted
        _check_same(f"reference {name!r}", known, configuration(wanted)["references"][name])
        if wanted.reference(name).table_id != schema.reference(name).table_id:
            raise Conflict(
                f"reference {name!r} already exists, to another table that was at {table} before",
                hint="drop the reference, then add it again",
            )
        return None

    return publish_schema(table_log, f"add reference {name} to {table}", change)


def drop_reference(table_log: TableLog, name: str) -> SchemaChange:
    """Drop a reference. The other table is not changed, and older snapshots keep the columns.

    Raises:
        NotFound: The table has no such reference.
    """

    def change(schema: TableSchema) -> TableSchema | None:
        schema.reference(name)
        return replace(schema, references=tuple(each for each in schema.references if each.name != name))

    return publish_schema(table_log, f"drop reference {name}", change)


def publish_schema(table_log: TableLog, words: str, change: Change) -> SchemaChange:
    def build(state: TableState) -> Schema | None:
        wanted = change(state.schema)
        if wanted is None:
            return None
        header = table_log.header(state)
        schema = _with_slot(state.schema, _with_table_ids(state.schema, wanted), header.seq)
        return Schema(
            **header,
            reader_features=reader_features(schema, state.writer_features),
            writer_features=writer_features(schema, state.writer_features),
            table_schema=schema.to_json(),
            change=words,
        )

    published = table_log.publish(build)
    return SchemaChange(table_log.refresh().schema_rev if published is None else published.seq, published is not None)


def _with_table_ids(before: TableSchema, wanted: TableSchema) -> TableSchema:
    """Keep the table ids of known references: a configuration does not have them."""
    known = {each.name: each.table_id for each in before.references}
    kept = (replace(each, table_id=known.get(each.name, each.table_id)) for each in wanted.references)
    return replace(wanted, references=tuple(kept))


def _with_slot(before: TableSchema, wanted: TableSchema, slot: int) -> TableSchema:
    """Record the slot of the schema's entry in its new and changed columns, so that readers recognise older files."""
    columns = []
    for column in wanted.columns:
        old = before.column_by_name.get(column.name)
        if old is None:
            columns.append(replace(column, since=slot, changed=slot))
            continue
        assert old.id == column.id, "ids never change"
        same = old.type == column.type and encode_scalar(old.default) == encode_scalar(column.default)
        columns.append(replace(column, since=old.since, changed=old.changed if same else slot))
    return replace(wanted, columns=tuple(columns), created_bits=before.created_bits)


def checked_schema(config: Mapping[str, Any]) -> TableSchema:
    return build_schema(load_config(config))


def _add_stream(schema: TableSchema, config: dict[str, Any], name: str, groups: Sequence[str], on_delete: str) -> None:
    for known in schema.streams:
        if known.name == name:
            now = {"groups": set(known.groups), "on_delete": known.on_delete}
            _check_same(f"stream {name!r}", now, {"groups": set(groups), "on_delete": on_delete})
            return
    config["streams"][name] = {"groups": groups, "on_delete": on_delete}


def _with_known_comment(schema: TableSchema, name: str, given: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A column to add. If the table has it already, and the request has no comment, its comment stays."""
    known = schema.column_by_name.get(name)
    if known is None or not isinstance(given, str | Mapping):
        return given
    return {"comment": known.comment, **({"type": given} if isinstance(given, str) else given)}


def _check_free(schema: TableSchema, name: str, group: str) -> None:
    """Refuse a name that is already used by a key column or a column of another group.

    Raises:
        Conflict: The name is taken.
    """
    if name in schema.key:
        raise Conflict(f"column {name!r} is already a key column", hint="choose another name")
    owner = schema.group_of_column.get(name)
    if owner is not None and owner.name != group:
        raise Conflict(f"column {name!r} is already in group {owner.name!r}", hint="choose another name")


def _check_same(what: str, now: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to add something that the table already has with other properties.

    Raises:
        Conflict: A property differs.
    """
    differing = [part for part in now if now[part] != asked[part]]
    if differing:
        shown = (f"{part} {_shown(now[part])}, not {_shown(asked[part])}" for part in differing)
        raise Conflict(
            f"{what} already exists, with {'; '.join(shown)}",
            hint="widen_column widens a type, set_default and set_comment change defaults and comments; "
            "for anything else choose another name",
        )


def _shown(value: object) -> str:
    return ", ".join(sorted(value)) if isinstance(value, set) else repr(value)


def _about_column(schema: TableSchema, name: str) -> dict[str, Any]:
    column = schema.column_by_name[name]
    functions = {f.column: (f.name, f.delimiter) for group in schema.groups for f in group.functions}
    return {
        "type": format_type(column.type),
        "default": encode_scalar(column.default),
        "function": functions.get(name),
        "comment": column.comment,
    }


def _about_group(schema: TableSchema, group: Group) -> dict[str, Any]:
    about: dict[str, Any] = {
        "ordering": list(group.ordering),
        "merge": group.merge,
        "state": dict(group.state),
    }
    return about | {f"column {name}": _about_column(schema, name) for name in group.columns}
