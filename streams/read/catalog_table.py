"""Tables of Spark's catalog: ``CREATE TABLE t USING weft OPTIONS (path '...')``, or with ``LOCATION``.

Spark 4.3 tells a Python source of a catalog table where it is, and which options it has, while the table is created
and never again: a query brings the columns and nothing else. The columns are the only thing that comes back, so the
first of them keeps the rest, in its metadata. Where the statement lists columns of its own, Spark does not ask the
source at all when the table is created, and the first query says so.

Metadata goes wherever a column goes, into Parquet files too. So no secrets are kept there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from storage.errors import InvalidInput

_KEY: Final = "weft_table"
_CREATED: Final = {"provider", "owner"}  # given while a catalog table is created, and only then
_OPTION: Final = "option."  # options come twice: so, and as properties of the table, which TBLPROPERTIES are too
_PATH: Final = "path"
_STORE: Final = "storage_options"


def options_given(given: Mapping[str, str]) -> dict[str, str]:
    """What the user gave, of all that Spark tells a source.

    Raises:
        InvalidInput: A catalog table is created with ``storage_options``, or without a path.
    """
    if not given.keys() >= _CREATED:
        return dict(given)
    options = {name.removeprefix(_OPTION): value for name, value in given.items() if name.startswith(_OPTION)}
    if any(name.lower() == _STORE for name in options):
        raise InvalidInput(
            "a table of Spark's catalog cannot have storage_options: there may be secrets in them, which every schema "
            "that comes of the table would tell",
            hint="let the environment have the credentials, or CREATE TEMPORARY VIEW ... USING weft OPTIONS (...)",
        )
    path = given.get(_PATH)
    if not path:
        raise InvalidInput(
            "CREATE TABLE ... USING weft needs the table's location",
            hint="OPTIONS (path '...') or LOCATION '...': of a table that is there, Table.create makes one",
        )
    # Spark writes a local folder as file:/folder, and escapes nothing; as a URL it would be unescaped.
    local = path.startswith("file:/") and not path.startswith("file://")
    return {**options, _PATH: path.removeprefix("file:") if local else path}


def keep_options(schema: StructType, given: Mapping[str, str]) -> StructType:
    """The columns of a table that may become one of the catalog, with what a query will need to know."""
    if not given.keys() >= _CREATED:
        return schema
    first, *others = schema.fields
    kept = StructField(first.name, first.dataType, first.nullable, {_KEY: options_given(given)})
    return StructType([kept, *others])


def options_kept(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a read: those given, and of a catalog table those that were kept; the given ones win.

    Raises:
        InvalidInput: Neither says where the table is.
    """
    if _PATH in given:
        return dict(given)
    for field in schema.fields:
        if _KEY in field.metadata:
            return {**field.metadata[_KEY], **given}
    raise InvalidInput(
        "format weft needs the table's location, and Spark tells none",
        hint='.option("path", uri), or .load(uri). A table of Spark\'s catalog has to be created without a list of '
        "columns, else Spark forgets where it is: CREATE TABLE t USING weft OPTIONS (path '...')",
    )
