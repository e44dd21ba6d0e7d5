"""Table configuration: checks what a user wrote, and turns it into a `TableSchema`.

Every error names the field and has a hint. A table can be created from every configuration that passes. The fields are
explained in deploy/docs/configuration.md and MERGE.md.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from weft.storage import shown
from weft.storage.config.config_file import (
    FieldError,
    Names,
    Sections,
    collect,
    errors_at,
    find_problems,
    parse_fields,
    read_yaml,
    remove_field,
)
from weft.storage.config.functions import FunctionConfig, FunctionOptions, build_functions, has_options
from weft.storage.config.references import ReferenceConfig, build_references
from weft.storage.config.ttl import TtlConfig, resolve_ttl, ttl_configuration
from weft.storage.core import names
from weft.storage.core.model import Column, Function, Group, Reference, Stream, Ttl
from weft.storage.core.modes import find_mode, spellings
from weft.storage.core.modes.functions import find_function
from weft.storage.core.schema.state_columns import ARRIVAL, PRESENT
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import can_be_indexed, format_type, parse_type
from weft.storage.errors import InvalidInput

RESERVED: Final = ("_op", "_supplied")
MAX_BUCKETS: Final = 1 << 16  # one file group per bucket and partition: more buckets only make smaller files
_SMALL_INTEGERS: Final = (pa.int8(), pa.int16())
_SORTED: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp)
_KEY_TYPES: Final = (*_SORTED, pa.types.is_binary)
_ORDERING_TYPES: Final = (*_SORTED, pa.types.is_float64)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnConfig(_Model):
    """A column as a mapping: its Spark SQL type name, the value to show where its group is absent, and a comment."""

    type: str
    default: Any = None
    comment: str = ""


def _as_mapping(value: Any) -> Any:
    if not isinstance(value, str | Mapping | ColumnConfig):
        raise FieldError("is neither a type nor a mapping", hint="for example bigint, or {type: int, default: 0}")
    return {"type": value} if isinstance(value, str) else value


class GroupConfig(_Model):
    """A column group: its columns, the columns that order its events, and how events merge."""

    columns: list[str] = Field(min_length=1)
    ordering: Names = []
    merge: str = "latest"
    functions: dict[str, FunctionConfig] = {}
    state: dict[str, str] = {}


class StreamConfig(_Model):
    """A stream: the groups that it writes, and what its deletes mean."""

    groups: Names = Field(min_length=1)
    on_delete: Literal["group", "row", "ignore"] = "group"


class TableConfig(_Model):
    """The configuration of one table, as in YAML."""

    key: Names = Field(min_length=1)
    partition_by: Names = []
    buckets: int = 8
    columns: dict[str, Annotated[ColumnConfig, BeforeValidator(_as_mapping)]] = Field(min_length=1)
    groups: dict[str, GroupConfig] = Field(min_length=1)
    streams: dict[str, StreamConfig] = Field(min_length=1)
    ttl: TtlConfig | None = None
    references: dict[str, ReferenceConfig] = {}
    comment: str = ""
    overlays: bool = False
    index: Names = []

    def _repr_html_(self) -> str:
        """For notebooks: as YAML."""
        plain = self.model_dump(mode="json", exclude_defaults=True)
        return shown.text("TableConfig", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


_SECTIONS: Final[Sections] = {
    "ttl": TtlConfig,
    "columns.*": ColumnConfig,
    "groups.*.functions.*": FunctionOptions,
    "groups.*": GroupConfig,
    "streams.*": StreamConfig,
    "references.*": ReferenceConfig,
}


def load_config(source: TableConfig | Mapping[str, Any] | str | Path) -> TableConfig:
    """Read a configuration.

    Args:
        source: A mapping, or the path of a YAML file.

    Raises:
        InvalidInput: A field is missing, unknown or of a wrong type. The message names every such field.
    """
    if isinstance(source, TableConfig):
        return source
    with errors_at("table configuration: "):
        raw = read_yaml(Path(source)) if isinstance(source, str | Path) else source
        return parse_fields(TableConfig, raw, _SECTIONS, hint="see deploy/docs/configuration.md")


def build_schema(config: TableConfig) -> TableSchema:
    """Check a configuration as a whole, and assign an id to every column, group and stream.

    Args:
        config: From `load_config`. A reference that lists no columns has none in the schema, because the referenced
            table is not read here (`weft.storage.services.schema.resolve_references`).

    Raises:
        InvalidInput: Two fields do not fit together. The message names the first such field.
    """
    schema, problems = _schema(config)
    if schema is None:
        raise problems[0]
    return schema


def check_config(raw: Any) -> tuple[TableConfig | None, TableSchema | None, list[InvalidInput]]:
    """Check a configuration: returns it with its schema, or all problems. Each message begins with a field."""
    config, wrong_fields = find_problems(TableConfig, raw, _SECTIONS)
    if config is not None:
        return config, *_schema(config)
    problems = [InvalidInput(f"{wrong.field}: {wrong.text}", hint="; ".join(wrong.hints)) for wrong in wrong_fields]
    # If a whole column or group were removed, fields that refer to it would seem to be wrong.
    if all(not wrong.missing and len(wrong.path) not in {0, 2} for wrong in wrong_fields):
        rest = copy.deepcopy(raw)
        for wrong in wrong_fields:
            remove_field(rest, wrong.path)
        if (config := find_problems(TableConfig, rest, _SECTIONS)[0]) is not None:
            problems += _schema(config)[1]
    return None, None, problems


def _schema(config: TableConfig) -> tuple[TableSchema | None, list[InvalidInput]]:
    """The schema, or None and all problems."""
    problems = list(_check_names(config))
    columns = _columns(config, problems)
    by_name = {column.name: column for column in columns}  # only valid columns
    problems += _check_key(config, by_name)
    problems += _check_groups(config, by_name)
    functions: dict[str, tuple[Function, ...]] = {}
    for name, group in config.groups.items():
        functions[name] = ()
        with collect(problems):
            mode = find_mode(group.merge)
            if mode is not None and mode.takes_functions:
                field = f"groups.{name}.functions"
                functions[name] = build_functions(field, group.functions, group.columns, group.ordering, by_name)
    problems += _check_streams(config, functions)
    merge = {name: group.merge for group in config.groups.values() for name in group.columns}
    ttl: Ttl | None = None
    references: tuple[Reference, ...] = ()
    index: tuple[str, ...] = ()
    if len(columns) == len(config.columns):  # otherwise an invalid column would seem to be missing
        with collect(problems):
            ttl = None if config.ttl is None else resolve_ttl(config.ttl, by_name, merge)
        with collect(problems):
            references = build_references(
                config.references, by_name, config.groups, is_key=_can_be_key, reserved=RESERVED
            )
        with collect(problems):
            index = _index(config, by_name)
    if problems:
        return None, problems
    schema = TableSchema(
        key=tuple(config.key),
        partition_by=tuple(config.partition_by),
        bucket_bits=config.buckets.bit_length() - 1,
        columns=tuple(_as_key(column) if column.name in config.key else column for column in columns),
        groups=tuple(
            Group(
                i,
                name,
                tuple(n for n in config.columns if n in group.columns),
                tuple(group.ordering),
                group.merge,
                functions[name],
                tuple((n, format_type(parse_type(type_name))) for n, type_name in group.state.items()),
            )
            for i, (name, group) in enumerate(config.groups.items(), start=1)
        ),
        streams=tuple(
            Stream(i, names.StreamName(names.lane_name(name)), tuple(stream.groups), stream.on_delete)
            for i, (name, stream) in enumerate(config.streams.items(), start=1)
        ),
        ttl=ttl,
        references=references,
        comment=config.comment,
        overlays=config.overlays,
        index=index,
    )
    return schema, []


def configuration(schema: TableSchema) -> dict[str, Any]:
    """The configuration of a schema: `load_config` and `build_schema` turn it into an equal schema, with equal ids.

    Returns:
        Plain values: a caller can change some of them and check the result as a whole.
    """
    return {
        "key": list(schema.key),
        "partition_by": list(schema.partition_by),
        "buckets": 1 << schema.bucket_bits,
        "columns": {
            c.name: {"type": format_type(c.type), "default": c.default, "comment": c.comment} for c in schema.columns
        },
        "groups": {
            group.name: {
                "columns": list(group.columns),
                "ordering": list(group.ordering),
                "merge": group.merge,
                "functions": {
                    f.column: {f.name: {"delimiter": f.delimiter}} if has_options(f.name) else f.name
                    for f in group.functions
                },
                "state": dict(group.state),
            }
            for group in schema.groups
        },
        "streams": {s.name: {"groups": list(s.groups), "on_delete": s.on_delete} for s in schema.streams},
        "ttl": None if schema.ttl is None else ttl_configuration(schema.ttl),
        "references": {
            r.name: {"table": r.table, "on": list(r.on), "columns": list(r.columns), "prefix": r.prefix}
            for r in schema.references
        },
        "comment": schema.comment,
        "overlays": schema.overlays,
        "index": list(schema.index),
    }


def _index(config: TableConfig, columns: Mapping[str, Column]) -> tuple[str, ...]:
    """The indexed columns, in table order."""
    for name in config.index:
        column = columns.get(name)
        if column is None:
            raise InvalidInput(f"index: there is no column {name!r}", hint=f"columns: {', '.join(columns)}")
        if not can_be_indexed(column.type):
            raise InvalidInput(
                f"index: column {name!r} is {format_type(column.type)}",
                hint="index columns of integers, strings, binaries or dates",
            )
        if [name] == config.key:
            raise InvalidInput(f"index: {name!r} is the key", hint="leave it out: keys are looked up without an index")
    return tuple(name for name in columns if name in config.index)


def _check_names(config: TableConfig) -> Iterator[InvalidInput]:
    states = {names.fold_case(f"{prefix}{group}"): group for group in config.groups for prefix in (PRESENT, ARRIVAL)}
    for kind, section in (("columns", config.columns), ("groups", config.groups), ("streams", config.streams)):
        count = Counter(names.fold_case(name) for name in section)
        for name in section:
            folded = names.fold_case(name)
            if not name:
                yield InvalidInput(f"{kind}: a name is empty", hint="give every name at least one character")
            elif folded in RESERVED or folded.startswith(names.HIDDEN_PREFIX):
                hint = f"rename it: reserved are {', '.join(RESERVED)}, and names that start with {names.HIDDEN_PREFIX}"
                yield InvalidInput(f"{kind}.{name}: the name is reserved", hint=hint)
            elif kind == "columns" and folded in states:
                yield InvalidInput(
                    f"columns.{name}: reads use this name for the state of group {states[folded]!r}",
                    hint=f"rename the column: names made of {PRESENT} or {ARRIVAL} and a group are reserved",
                )
            elif count[folded] > 1:
                hint = "Spark SQL ignores case: rename one"
                yield InvalidInput(f"{kind}.{name}: two names differ only in case", hint=hint)


def _columns(config: TableConfig, problems: list[InvalidInput]) -> list[Column]:
    columns = []
    for i, (name, column) in enumerate(config.columns.items(), start=1):
        with collect(problems):
            with errors_at(f"columns.{name}: "):
                arrow_type = parse_type(column.type)
            default = _default(name, column.default, arrow_type)
            columns.append(Column(i, name, arrow_type, default, comment=column.comment))
    return columns


def _default(name: str, value: Any, arrow_type: pa.DataType) -> Any:
    field = f"columns.{name}.default"
    if value is None:
        return None
    if pa.types.is_nested(arrow_type):
        raise InvalidInput(f"{field}: nested columns cannot have a default", hint="leave it out: NULL is shown")
    try:
        if pa.types.is_decimal(arrow_type) and not isinstance(value, bool):
            value = decimal.Decimal(str(value))
        elif pa.types.is_timestamp(arrow_type) and isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        elif pa.types.is_date(arrow_type) and isinstance(value, str):
            value = dt.date.fromisoformat(value)
        if isinstance(value, bool) != pa.types.is_boolean(arrow_type):
            raise TypeError  # noqa: TRY301 - Arrow would accept True as 1
        return pa.scalar(value, arrow_type).as_py()
    except (pa.ArrowException, ValueError, TypeError, OverflowError, decimal.InvalidOperation):
        hint = "write a value of the column's type"
        raise InvalidInput(f"{field}: {value!r} is not a {format_type(arrow_type)}", hint=hint) from None


def _check_key(config: TableConfig, columns: Mapping[str, Column]) -> Iterator[InvalidInput]:
    for name in config.key:
        column = columns.get(name)
        if name not in config.columns:
            yield _unknown("key", name, config.columns)
        elif column is not None and not _can_be_key(column.type):
            yield InvalidInput(
                f"key: column {name!r} has type {format_type(column.type)}",
                hint="keys are tinyint to bigint, string, binary, date, timestamp, timestamp_ntz or decimal "
                "(guide: deploy/docs/modelling.md#keys)",
            )
        elif column is not None and column.default is not None:
            yield InvalidInput(f"columns.{name}.default: a key column cannot have a default", hint="remove the default")
    buckets = config.buckets
    if buckets < 1 or buckets & (buckets - 1) or buckets > MAX_BUCKETS:
        yield InvalidInput(
            f"buckets: {buckets} is not a power of two from 1 to {MAX_BUCKETS}",
            hint="for example 8 (guide: deploy/docs/modelling.md#buckets)",
        )
    for name in config.partition_by:
        if name not in config.key:
            yield InvalidInput(
                f"partition_by: column {name!r} is not part of the key",
                hint="a key must stay in one partition: add the column to the key, or do not partition by it",
            )


def _check_groups(config: TableConfig, columns: Mapping[str, Column]) -> Iterator[InvalidInput]:
    group_of: dict[str, str] = {}
    for name, group in config.groups.items():
        field = f"groups.{name}"
        for column in group.columns:
            if column not in config.columns:
                yield _unknown(f"{field}.columns", column, config.columns)
            elif column in config.key:
                hint = "key columns belong to no group: remove it"
                yield InvalidInput(f"{field}.columns: {column!r} is a key column", hint=hint)
            elif column in group_of:
                yield InvalidInput(
                    f"{field}.columns: column {column!r} is already in group {group_of[column]!r}",
                    hint="every column belongs to exactly one group (guide: deploy/docs/modelling.md#groups)",
                )
            else:
                group_of[column] = name
        for column in group.ordering:
            if column not in group.columns:
                yield InvalidInput(
                    f"{field}.ordering: {column!r} is not a column of the group",
                    hint=f"order by columns of the group: {', '.join(group.columns)} "
                    "(guide: deploy/docs/modelling.md#orderings)",
                )
            elif column in columns and not any(test(columns[column].type) for test in _ORDERING_TYPES):
                yield InvalidInput(
                    f"{field}.ordering: column {column!r} has type {format_type(columns[column].type)}",
                    hint="ordering values are integers, decimal, date, timestamp, timestamp_ntz, string or double",
                )
        yield from _check_mode(field, group, config)
    for column in config.columns:
        if column not in group_of and column not in config.key:
            yield InvalidInput(
                f"columns.{column}: the column is not in a group", hint="add it to a group, or to the key"
            )


def _check_mode(field: str, group: GroupConfig, config: TableConfig) -> Iterator[InvalidInput]:
    mode = find_mode(group.merge)
    if mode is None:
        hint = f"modes: {', '.join(spellings())}"
        yield InvalidInput(f"{field}.merge: {group.merge!r} is not a merge mode of this version", hint=hint)
        return
    for state in group.state:
        if not mode.takes_state or state.startswith("_") or state in config.columns:
            yield InvalidInput(
                f"{field}.state.{state}: is not a valid state column",
                hint="only custom mergers keep state; choose a name that is not a column and does not start with '_'",
            )
    if group.functions and not mode.takes_functions:
        yield InvalidInput(
            f"{field}.functions: the group's mode is {group.merge!r}, which has no functions",
            hint="set merge: aggregate, or remove functions",
        )


def _check_streams(config: TableConfig, functions: Mapping[str, Sequence[Function]]) -> Iterator[InvalidInput]:
    deletes: dict[str, tuple[str, str]] = {}
    for name, stream in config.streams.items():
        try:
            names.lane_name(name)
        except InvalidInput as error:
            yield error
        for group in stream.groups:
            if group not in config.groups:
                yield _unknown(f"streams.{name}.groups", group, config.groups)
            elif stream.on_delete != "ignore":
                other, policy = deletes.setdefault(group, (name, stream.on_delete))
                # A delete takes back the values of earlier events, which some functions cannot do.
                unable = next((f for f in functions[group] if not find_function(f.name).retractable), None)
                if policy != stream.on_delete:
                    yield InvalidInput(
                        f"streams.{name}.on_delete: {stream.on_delete!r}, but stream {other!r}, which also writes "
                        f"group {group!r}, has {policy!r}",
                        hint="streams that write the same group must not mix row and group deletes",
                    )
                elif unable is not None:
                    yield InvalidInput(
                        f"groups.{group}.functions.{unable.column}: {unable.name} cannot take back what stream "
                        f"{name!r} deletes",
                        hint=f"streams.{name}.on_delete: ignore (guide: deploy/docs/modelling.md#deletes)",
                    )
    written_groups = {group for stream in config.streams.values() for group in stream.groups}
    for group in config.groups:
        if group not in written_groups:
            yield InvalidInput(f"groups.{group}: no stream writes the group", hint="add the group to a stream")


def _can_be_key(arrow_type: pa.DataType) -> bool:
    return any(test(arrow_type) for test in _KEY_TYPES)


def _unknown(field: str, name: str, choices: Iterable[str]) -> InvalidInput:
    return InvalidInput(f"{field}: there is no {name!r}", hint=f"known: {', '.join(choices)}")


def _as_key(column: Column) -> Column:
    # Iceberg's bucket transform does not support 8- and 16-bit integers; wider ones hold the same values.
    if column.type in _SMALL_INTEGERS:
        return replace(column, type=pa.int32())
    return column
