"""Tables of Spark's catalog: ``CREATE TABLE t USING weft OPTIONS (path '...')``, or with ``LOCATION``.

Spark 4.3 passes the location and the options of a catalog table to a Python source only when the table is created. A
later query passes only the columns. So weft stores location and options in the metadata of the first column when the
table is created, and reads them from there. If the statement lists columns, Spark does not call the source when the
table is created, nothing is stored, and the first query fails with a hint.

The metadata of a column is copied with the column, also into Parquet files. So options that may have secrets are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from weft.storage.errors import InvalidInput

_KEY: Final = "weft_table"
_CREATED: Final = {"provider", "owner"}  # Spark passes these only when a catalog table is created
_OPTION: Final = "option."  # prefix of options; without it they are mixed with TBLPROPERTIES
_PATH: Final = "path"
_STORE: Final = "storage_options"


def user_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user gave, out of everything that Spark passes to a source.

    Raises:
        InvalidInput: A catalog table is created with ``storage_options``, or without a path.
    """
    if not properties.keys() >= _CREATED:
        return dict(properties)
    options = {name.removeprefix(_OPTION): value for name, value in properties.items() if name.startswith(_OPTION)}
    if any(name.lower() == _STORE for name in options):
        raise InvalidInput(
            "a table of Spark's catalog cannot have storage_options: they may contain secrets, and would be stored in "
            "the schema of the table",
            hint="put the credentials into the environment, or use CREATE TEMPORARY VIEW ... USING weft OPTIONS (...)",
        )
    path = properties.get(_PATH)
    if not path:
        raise InvalidInput(
            "CREATE TABLE ... USING weft needs the table's location",
            hint="add OPTIONS (path '...') or LOCATION '...' of an existing table; Table.create creates one",
        )
    # Spark passes a local folder as file:/folder without percent-encoding; a path is not decoded, a URL would be.
    local = path.startswith("file:/") and not path.startswith("file://")
    return {**options, _PATH: path.removeprefix("file:") if local else path}


def store_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns; while a catalog table is created, store its options in the metadata of the first column."""
    if not options.keys() >= _CREATED:
        return schema
    first, *others = schema.fields
    first_field = StructField(first.name, first.dataType, first.nullable, {_KEY: user_options(options)})
    return StructType([first_field, *others])


def merge_options(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read: those that `store_options` stored, overridden by those of the read.

    Raises:
        InvalidInput: Neither has the location of the table.
    """
    if _PATH in options:
        return dict(options)
    for field in schema.fields:
        if _KEY in field.metadata:
            return {**field.metadata[_KEY], **options}
    raise InvalidInput(
        "format weft needs the table's location, and Spark passes none",
        hint='use .option("path", uri) or .load(uri). Create a table of Spark\'s catalog without a list of columns, '
        "because with one Spark loses the location: DROP TABLE t, then CREATE TABLE t USING weft OPTIONS (path '...'); "
        "weft.register_catalog has CREATE TABLE for new tables of weft",
    )
