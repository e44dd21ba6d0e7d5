"""A table's configuration as SQL properties, and back: ``CREATE TABLE ... TBLPROPERTIES ('key' = 'order_id', ...)``.

Columns with their types, defaults and comments are in the statement's list of columns. Everything else of a
configuration is a property:

    key, partition_by                          columns, separated by commas
    buckets                                    a number
    group.<group>                              columns of the group
    group.<group>.ordering                     columns that order its events
    group.<group>.merge                        merge mode
    group.<group>.function.<column>            aggregate function of the column
    group.<group>.function.<column>.delimiter  delimiter of listagg
    group.<group>.state.<name>                 type of a state column of a custom merger
    stream.<stream>                            groups that the stream writes
    stream.<stream>.on_delete                  group, row or ignore
    ttl.rows, ttl.by, ttl.unit, ttl.deletes, ttl.within
    reference.<name>                           location of another table
    reference.<name>.on                        columns that hold its key
    reference.<name>.columns, reference.<name>.prefix
    comment                                    what the table is; also COMMENT of the statement
    overlays                                   true or false
    index                                      columns with Bloom filters

A name that is not a plain identifier stands in backquotes, as in SQL: ``group.`a.b` ``. SQL properties have no order,
so groups are ordered by the first of their columns in the table, and streams and references by name. What the values
mean is checked by `weft.storage.config.table_config`, as for a configuration in YAML. deploy/docs/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from weft.storage.config.references import ReferenceConfig
from weft.storage.config.table_config import (
    GroupConfig,
    StreamConfig,
    TableConfig,
    build_schema,
    configuration,
    load_config,
)
from weft.storage.config.ttl import TtlConfig
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput

_PLAIN: Final = re.compile(r"[A-Za-z0-9_]+")
_PART: Final = re.compile(r"\s*(?=\S)(?:`((?:[^`]|``)+)`\s*|([^`.,]+))([.,]|\Z)")
_UNITS_MS: Final = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000), ("ms", 1))
_SECTIONS: Final = {"group": "groups", "stream": "streams", "reference": "references"}
_KINDS: Final = {section: kind for kind, section in _SECTIONS.items()}
_MAIN: Final = {"group": "columns", "stream": "groups", "reference": "table"}
"""The field that a property without a field sets, such as ``stream.<stream>``."""
_NESTED: Final = {
    "functions": (".function.<column>", ".function.<column>.delimiter"),
    "state": (".state.<name>",),
}
_FIELDS: Final = {
    kind: {
        suffix: field
        for field in model.model_fields
        for suffix in _NESTED.get(field, ("" if field == _MAIN[kind] else f".{field}",))
    }
    for kind, model in (("group", GroupConfig), ("stream", StreamConfig), ("reference", ReferenceConfig))
}
"""Field of a section by the suffix that its property has after the name of the item."""
_LISTS: Final = {"columns", "ordering", "groups", "on"}
_ASSIGNMENT: Final = re.compile(r"((?:groups|streams|references|ttl)\.[\w.]+): (\S+)( \(guide: .*\))?")
_WHERE: Final = re.compile(r"(?:table configuration: )?(groups|streams|references|columns|ttl)\.([^:]*)")


class SqlColumn(NamedTuple):
    """A column of a CREATE TABLE statement.

    Attributes:
        name: Name of the column.
        type: Spark SQL type name.
        default: Value shown where the column's group is absent; None for NULL.
        comment: What the column means; empty for none.
    """

    name: str
    type: str
    default: Any = None
    comment: str = ""


def config_from_properties(columns: Sequence[SqlColumn], properties: Mapping[str, str]) -> TableConfig:
    """The configuration that a CREATE TABLE statement describes, checked as a whole.

    Args:
        columns: The columns of the statement, in order.
        properties: Its properties, without those that engines add, such as ``provider``.

    Raises:
        InvalidInput: A property is unknown, its value cannot be read, or the configuration is wrong. The message names
            the property or column.
    """
    config: dict[str, Any] = {"columns": {}}
    for column in columns:
        if column.name in config["columns"]:
            raise InvalidInput(f"column {column.name!r} is listed twice", hint="list it once")
        config["columns"][column.name] = {"type": column.type, "default": column.default, "comment": column.comment}
    for name, value in sorted(properties.items()):
        _set(config, name, value)
    for kind, section in _SECTIONS.items():
        for name, fields in config.get(section, {}).items():
            if _MAIN[kind] not in fields:
                (field, *_) = fields
                raise InvalidInput(
                    f"property '{_key(kind, name, field)}': there is no property '{_key(kind, name)}'",
                    hint=f"add '{_key(kind, name)}' = '{_EXAMPLES[kind]}'",
                )
    if "key" not in config:
        raise InvalidInput("property 'key' is missing", hint="for example TBLPROPERTIES ('key' = 'order_id', ...)")
    for kind in ("group", "stream"):
        if _SECTIONS[kind] not in config:
            what = f"property '{kind}.<{kind}>' is missing: there is no {kind}"
            raise InvalidInput(what, hint=f"for example '{_key(kind, 'payment')}' = '{_EXAMPLES[kind]}'")
    for name in _shown_by_references(config):
        config["columns"].pop(name, None)
    place = {column.name: i for i, column in enumerate(columns)}

    def first_column(group: str) -> tuple[int, str]:
        return min(place.get(name, len(place)) for name in config["groups"][group]["columns"]), group

    config["groups"] = {name: config["groups"][name] for name in sorted(config["groups"], key=first_column)}
    try:
        loaded = load_config(config)
        build_schema(loaded)
    except InvalidInput as error:
        raise InvalidInput(_as_property(error.message), hint=_as_assignment(error.hint)) from None
    return loaded


def properties_of(config: TableConfig) -> dict[str, str]:
    """The properties of a configuration; `config_from_properties` turns them and its columns into an equal one."""
    values = {"buckets": config.buckets} | config.model_dump(exclude_defaults=True, exclude={"columns"})
    properties: dict[str, str] = {}
    for section in (name for name in TableConfig.model_fields if name in values):
        value = values[section]
        if section in _KINDS:
            for name, fields in value.items():
                properties |= _properties(_KINDS[section], name, fields)
        elif section == "ttl":
            texts = {field: term if isinstance(term, str) else _duration(term) for field, term in value.items()}
            properties |= {_key("ttl", field): text for field, text in texts.items()}
        else:
            properties[section] = _format_value(value)
    return properties


def _properties(kind: str, name: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The properties of a group, stream or reference."""
    for field, value in fields.items():
        if field == "functions":
            for column, functions in value.items():
                for function, options in functions.items():
                    yield _key(kind, name, "function", column), function
                    if options is not None:
                        yield _key(kind, name, "function", column, "delimiter"), options.get("delimiter", ",")
        elif field == "state":
            yield from ((_key(kind, name, "state", state), type_name) for state, type_name in value.items())
        else:
            yield _key(kind, name, *([] if field == _MAIN[kind] else [field])), _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return _names(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def schema_properties(schema: TableSchema) -> dict[str, str]:
    """The properties of an existing table, as in `properties_of`."""
    return properties_of(load_config(configuration(schema)))


def parse_names(text: str) -> list[str]:
    """Names in a list that is separated by commas; a name in backquotes may have any characters.

    Raises:
        InvalidInput: A name is missing, or a backquote is not closed.
    """
    return _split(text, ",", f"'{text}' is not a list of names")


def parse_parts(text: str) -> list[str]:
    """The parts of a property's name.

    Raises:
        InvalidInput: A part is missing, or a backquote is not closed.
    """
    return _split(text, ".", f"property '{text}': its name cannot be read")


_EXAMPLES: Final = {"group": "paid,pay_ts", "stream": "payment", "reference": "../customers"}


def _set(config: dict[str, Any], name: str, value: str) -> None:
    """Put one property into a configuration of plain values.

    Raises:
        InvalidInput: The property is unknown, or its value cannot be read.
    """
    match parse_parts(name):
        case [field] if field in _READERS:
            config[field] = _READERS[field](name, value)
        case ["ttl", field] if field in TtlConfig.model_fields:
            config.setdefault("ttl", {})[field] = value
        case ["group", item, "function", column]:
            functions = _section(config, "group", item).setdefault("functions", {})
            functions[column] = {value: functions[column][""]} if column in functions else value
        case ["group", item, "function", column, "delimiter"]:
            functions = _section(config, "group", item).setdefault("functions", {})
            if column not in functions:  # properties are sorted, so the function comes first
                function = f"group.{_quoted(item)}.function.{_quoted(column)}"
                raise InvalidInput(
                    f"property '{name}': there is no property '{function}'", hint=f"add '{function}' = 'listagg'"
                )
            functions[column] = {functions[column]: {"delimiter": value}}
        case ["group", item, "state", state]:
            _section(config, "group", item).setdefault("state", {})[state] = value
        case [kind, item, *rest] if item_field := _FIELDS.get(kind, {}).get(".".join(["", *rest])):
            _section(config, kind, item)[item_field] = _list(name, value) if item_field in _LISTS else value
        case _:
            forms = list(_forms())
            close = get_close_matches(name, forms, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise InvalidInput(f"property '{name}' is unknown", hint=f"{hint}known: {', '.join(forms)}")


def _forms() -> Iterator[str]:
    """The forms of all properties, such as ``group.<group>.ordering``, in the order of the configuration's fields."""
    for field in TableConfig.model_fields:
        if field in _READERS:
            yield field
        elif field == "ttl":
            yield from (f"ttl.{name}" for name in TtlConfig.model_fields)
        elif kind := _KINDS.get(field):
            item = f"{kind}.<{'name' if kind == 'reference' else kind}>"
            yield from (f"{item}{suffix}" for suffix in _FIELDS[kind])


def _shown_by_references(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of the columns that references show. SHOW CREATE TABLE lists them although they belong to other tables."""
    own_names = {name for group in config["groups"].values() for name in group["columns"]} | set(config["key"])
    for name, reference in config.get("references", {}).items():
        for column in reference.get("columns", ()):
            shown_name = f"{reference.get('prefix', f'{name}_')}{column}"
            if shown_name not in own_names:
                yield shown_name


def _section(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    section: dict[str, Any] = config.setdefault(_SECTIONS[kind], {}).setdefault(name, {})
    return section


def _list(name: str, value: str) -> list[str]:
    try:
        return parse_names(value)
    except InvalidInput as error:
        raise InvalidInput(f"property '{name}': {error.message}", hint=error.hint) from None


def _number(name: str, value: str) -> int:
    if not value.strip().isdecimal():
        raise InvalidInput(f"property '{name}': {value!r} is not a number", hint="for example '8'")
    return int(value)


def _boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in {"true", "false"}:
        raise InvalidInput(f"property '{name}': {value!r} is not a boolean", hint="write true or false")
    return value.strip().lower() == "true"


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "key": _list,
    "partition_by": _list,
    "buckets": _number,
    "comment": lambda _, value: value,
    "overlays": _boolean,
    "index": _list,
}
"""Functions that parse the value of a field that is a single property; arguments: the property and its value."""


def _split(text: str, separator: str, problem: str) -> list[str]:
    parts, position, mark = [], 0, separator
    while mark == separator and (match := _PART.match(text, position)):
        quoted, plain, mark = match.groups()
        parts.append(plain.strip() if quoted is None else quoted.replace("``", "`"))
        position = match.end()
    if mark:  # the text does not end after a part
        hint = f"separate names by '{separator}'; put one with other characters in backquotes"
        raise InvalidInput(problem, hint=hint)
    return parts


def _key(*parts: str) -> str:
    return ".".join(_quoted(part) for part in parts)


def _names(names: Iterable[str]) -> str:
    return ",".join(_quoted(name) for name in names)


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _duration(milliseconds: int) -> str:
    unit, size = next((unit, size) for unit, size in _UNITS_MS if milliseconds % size == 0)
    return f"{milliseconds // size} {unit}"


def _as_assignment(hint: str) -> str:
    """A hint that names a field of a configuration and its value, rewritten as an assignment of a property."""
    assignment = _ASSIGNMENT.fullmatch(hint)
    if assignment is None:
        return hint
    path, value, guide = assignment.groups(default="")
    return f"'{_as_property(path).removeprefix('property ')}' = '{value}'{guide}"


def _as_property(message: str) -> str:
    """An error message of a configuration with the property's name in place of the field's."""

    def replace(match: re.Match[str]) -> str:
        section, rest = match.groups()
        if section in {"columns", "ttl"}:
            return f"{'column ' if section == 'columns' else 'property ttl.'}{rest}"
        kind = _KINDS[section]
        field = rest.replace(".functions.", ".function.").removesuffix(f".{_MAIN[kind]}")
        return f"property {kind}.{field}"

    return _WHERE.sub(replace, message, count=1) if _WHERE.match(message) else message
