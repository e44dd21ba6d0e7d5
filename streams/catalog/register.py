"""Registers folders of tables as catalogs of Spark sessions.

A session made by `newSession`, and the cloned session of a streaming query, have separate catalogs in Spark. So the
first registration patches PySpark: each later session registers the catalogs of its application when Python creates an
object for it.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import parse_json
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.changes import parse_arguments
from weft.streams.catalog.lake import Lake
from weft.streams.catalog.lake_catalog import READ_OPTIONS, LakeCatalog, register_lake
from weft.streams.catalog.reader_options import check_readers
from weft.streams.catalog.registered_lakes import registered_lakes
from weft.streams.catalog.stream_table import mark_tables
from weft.streams.catalog.stream_to_table import route_streams
from weft.streams.read.relation.callbacks import ScalaFunction
from weft.streams.read.relation.jvm import UnsupportedSessionError
from weft.streams.read.stream_mark import mark_streams
from weft.streams.read.table_source import register as register_format
from weft.streams.spark.patch_method import patch_method

SETTING: Final = "spark.weft.catalog."
"""Prefix of settings: with the name of a catalog for its root; with ``.storage_options`` after it for a JSON object."""
CHANGES: Final = "weft_changes"

_RESERVED: Final = {"spark_catalog", "system", "session"}
_MARK: Final = "weft_catalogs"

_catalogs: weakref.WeakValueDictionary[tuple[str, str], LakeCatalog] = weakref.WeakValueDictionary()
"""The catalogs, by the id of their session and their name. Objects of Spark keep them alive."""


def register(spark: SparkSession) -> None:
    """Register ``format("weft")``, and the catalogs that settings of the session name.

    Raises:
        InvalidInput: See `register_configured`.
    """
    register_format(spark)
    register_configured(spark)


def register_catalog(
    spark: SparkSession, name: str, root: str | Path, *, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Register a folder of tables as a catalog, also for later sessions of the application.

    A table has the name ``<name>.<namespace>.<table>``.

    Args:
        spark: The session.
        name: A plain identifier. A catalog of the same name is replaced.
        root: A local folder, or the URL of an object store.
        storage_options: Options of the fsspec file system.

    Raises:
        InvalidInput: The name is not a plain identifier; or the session is one of Spark Connect, or of another version
            of Spark.
    """
    register_catalog_of(spark, name, Lake(str(root), dict(storage_options or {})))


def register_catalog_of(spark: SparkSession, name: str, lake: Lake) -> None:
    """Do what `register_catalog` does, with a `Lake`.

    Raises:
        InvalidInput: See `register_catalog`.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.lower() in _RESERVED:
        raise InvalidInput(
            f"catalog name {name!r} is not a plain identifier, or is reserved",
            hint="use letters, digits and underscores, and begin with a letter or an underscore",
        )
    try:
        _register(CatalogJvm.connect(spark), {name: lake})
    except UnsupportedSessionError as error:
        raise InvalidInput(
            f"catalog {name!r} cannot be registered: {error}",
            hint="use a classic session of Spark 4.3; weft.snapshot reads a table in other sessions",
        ) from error
    registered_lakes(spark)[name] = lake
    route_streams()
    check_readers(READ_OPTIONS)
    patch_method(SparkSession, "__init__", _MARK, _create_session)
    mark_streams()
    mark_tables()


def register_configured(spark: SparkSession) -> list[str]:
    """Register the catalogs that settings of a session name; see `SETTING`.

    Returns:
        The names of the catalogs.

    Raises:
        InvalidInput: See `register_catalog`; or the storage options are not a JSON object.
    """
    settings = {key.removeprefix(SETTING): value for key, value in spark.conf.getAll.items() if key.startswith(SETTING)}
    names = sorted(key for key in settings if "." not in key)
    for name in names:
        options = _parse_options(name, settings.get(f"{name}.storage_options"))
        register_catalog(spark, name, settings[name], storage_options=options)
    return names


def _parse_options(name: str, text: str | None) -> dict[str, Any]:
    try:
        options = parse_json(text or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise InvalidInput(
            f"{SETTING}{name}.storage_options is not a JSON object", hint="give the options of the fsspec file system"
        )
    return options


def _register(jvm: CatalogJvm, lakes: Mapping[str, Lake]) -> None:
    session = jvm.session_id()
    for name, lake in lakes.items():
        _catalogs[session, name] = register_lake(jvm, name, lake)
    jvm.register_function(CHANGES, ScalaFunction(jvm, f"{CHANGES} {id(jvm)}", functools.partial(_changes, jvm)))


def _changes(jvm: CatalogJvm, arguments: Any) -> Any:
    """The table function ``weft_changes``: it returns a logical plan for its arguments, a `Seq[Expression]`."""
    text, options = parse_arguments(jvm.literals(arguments))
    names = jvm.parse_name(text)
    session = jvm.session_id()
    catalogs = {name: catalog for (session_id, name), catalog in _catalogs.items() if session_id == session}
    location = jvm.find_catalog(catalogs, names)
    # If another catalog is current, the name of the only catalog of weft may still be left out.
    if location is None and len(catalogs) == 1:
        location = next(iter(catalogs)), names
    if location is None:
        raise InvalidInput(
            f"{'.'.join(names)}: there are several catalogs",
            hint=f"begin the name with the name of a catalog: {', '.join(sorted(catalogs))}",
        )
    catalog, table = location
    return catalogs[catalog].changes(table, options)


def _create_session(plain: Callable[..., None], session: SparkSession, /, *arguments: Any, **options: Any) -> None:
    """Create a session, and register the catalogs of its application in it."""
    plain(session, *arguments, **options)
    lakes = registered_lakes(session)
    if not lakes:
        return
    jvm = CatalogJvm.connect(session)
    missing = {name: lake for name, lake in lakes.items() if not jvm.has_catalog(name)}
    if missing:
        _register(jvm, missing)
