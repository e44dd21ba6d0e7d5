"""Compares an existing table with the configuration in a pipeline file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.storage.config.table_config import build_schema, configuration
from weft.storage.core.schema.evolution import widens
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import encode_scalar
from weft.storage.errors import Conflict
from weft.streams.pipeline.file.model import Pipeline


def check_same_table(pipeline: Pipeline, existing: TableSchema) -> None:
    """Check that the existing table is the one that the file describes, now or before schema changes.

    Raises:
        Conflict: It is another table; the message names the fields and both values.
    """
    if pipeline.config is None:
        return
    described = build_schema(pipeline.config)
    config = _comparable_config(described)
    existing_config = _config_before_changes(existing, described, config)
    differences = [text for part in config for text in _differences(part, config[part], existing_config[part])]
    if differences:
        raise Conflict(
            f"{pipeline.path.name}: table.config differs from the table at {pipeline.table.uri}: "
            f"{'; '.join(differences)}",
            hint="copy the table's configuration, remove table.config, or use another uri; weft alter changes a table",
        )


def _comparable_config(schema: TableSchema) -> dict[str, Any]:
    """The configuration of a schema without its comments, to compare it with another one."""
    config = configuration(schema)
    del config["comment"]
    for column in config["columns"].values():
        del column["comment"]
        column["default"] = encode_scalar(column["default"])  # NaN is equal to itself only as text
    return config


def _config_before_changes(existing: TableSchema, described: TableSchema, in_file: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the existing table without the schema changes that the file does not have yet."""
    config = _comparable_config(existing)
    columns, streams = config["columns"], config["streams"]
    for column in existing.columns:
        column_in_file = described.column_by_name.get(column.name)
        if column_in_file is None and column.since > 1:
            del columns[column.name]
        elif column_in_file is not None and column.changed > 1:
            columns[column.name]["default"] = in_file["columns"][column.name]["default"]
            if widens(column_in_file.type, column.type):
                columns[column.name]["type"] = in_file["columns"][column.name]["type"]
    for group in config["groups"].values():
        group["columns"] = [name for name in group["columns"] if name in columns]
        group["functions"] = {name: function for name, function in group["functions"].items() if name in columns}
    groups = config["groups"] = {name: group for name, group in config["groups"].items() if group["columns"]}
    for stream in existing.streams:
        streams[stream.name]["groups"] = [name for name in stream.groups if name in groups]
        if stream.id > len(described.streams):  # streams that were added later have larger ids
            del streams[stream.name]
    references = {name: item for name, item in config["references"].items() if name in in_file["references"]}
    for name, reference in references.items():
        if not in_file["references"][name]["columns"]:  # a file may leave them out
            reference["columns"] = []
    # A file may say how many buckets the table was created with, before weft split.
    buckets = in_file["buckets"] if existing.created_bits == described.bucket_bits else config["buckets"]
    unset = {part: in_file[part] for part in ("ttl", "overlays", "index") if not in_file[part]}
    return {**config, "references": references, "buckets": buckets, **unset}


def _differences(where: str, in_file: Any, in_table: Any) -> list[str]:
    """The differences between two values of a configuration, as texts. The order of a mapping counts, too."""
    if not isinstance(in_file, dict) or not isinstance(in_table, dict):
        return [] if in_file == in_table else [f"{where}: {in_file} in the file, {in_table} in the table"]
    differences = [f"{where}.{name} is only in the file" for name in in_file if name not in in_table]
    differences += [f"{where}.{name} is only in the table" for name in in_table if name not in in_file]
    for name in in_file:
        if name in in_table:
            differences += _differences(f"{where}.{name}", in_file[name], in_table[name])
    if not differences and list(in_file) != list(in_table):
        differences.append(f"{where}: the table has another order: {', '.join(in_table)}")
    return differences
