"""Procedures that explain, remove or rewrite rows."""

from __future__ import annotations

from typing import Any, Final

from pyspark.errors import PySparkException

from storage.engine import (
    EXPLANATION_SCHEMA,
    check_rewritable,
    format_type,
)
from storage.errors import InvalidInput
from streams.catalog.procedure import Row, Session, check_confirmed, open_table, procedure
from streams.read.as_of import parse_point
from streams.read.sql_function import SqlFunction
from streams.read.sql_query import short_message
from streams.read.text_values import parse_key, split_keys

_REWRITING: Final = {
    "cut": "string",
    "file_groups": "bigint",
    "rows": "bigint",
    "deletes": "bigint",
    "changed": "boolean",
}


@procedure({field.name: format_type(field.type) for field in EXPLANATION_SCHEMA}, reads=True)
def explain_row(
    session: Session, table: str, key: str, as_of: str | None = None, *, history: bool = False
) -> list[dict[str, Any]]:
    """Why a row has its values: per column group the stored events, which one wins, and why the others lose.

    ``key`` is the value of the key column; for a key of several columns, ``COLUMN=VALUE, COLUMN=VALUE``.
    Spaces belong to the value, except those between a comma and a column.
    """
    snapshot = open_table(session, table).snapshot(parse_point(as_of))
    schema = snapshot.table_schema
    texts = split_keys(schema.key, key)
    return snapshot.explain(parse_key(schema, texts, "key"), history=history).to_arrow().to_pylist()


@procedure({"rows": "bigint", "deletes": "bigint", "file_groups": "bigint", "skipped": "bigint"})
def apply_ttl(session: Session, table: str) -> Row:
    """Remove the rows and deletes that are older than the table's time to live, once."""
    result = open_table(session, table).apply_ttl()
    names = ("rows", "deletes", "file_groups", "skipped")
    return {name: getattr(result, name) for name in names}


@procedure(
    {
        "complete": "boolean",
        "keys": "bigint",
        "cut": "string",
        "file_groups": "bigint",
        "files_deleted": "bigint",
        "released": "array<string>",
        "broken": "array<string>",
        "remains": "array<string>",
        "newer": "array<string>",
    }
)
def erase(
    session: Session,
    table: str,
    keys: str,
    *,
    expire_snapshots: bool = False,
    release_savepoints: bool = False,
    note: str = "",
    confirm: bool = False,
) -> Row:
    """Remove keys physically from every file of a table, and prove it by reading all of them back.

    ``keys`` is a query that returns the key columns. ``remains`` has the objects that still have a key: run it again.
    """
    target = open_table(session, table)
    try:
        given = session.spark.sql(keys).select(*target.schema.key).toArrow()
    except PySparkException as error:
        hint = f"give a query that returns {', '.join(target.schema.key)}"
        raise InvalidInput(f"keys: {short_message(error)}", hint=hint) from None
    check_confirmed(f"Erase {given.num_rows} keys from {table}? This cannot be undone.", confirm=confirm)
    done = target.erase(given, expire_snapshots=expire_snapshots, release_savepoints=release_savepoints, note=note)
    return {
        "complete": done.complete,
        "keys": done.keys,
        "cut": str(done.cut),
        "file_groups": done.file_groups,
        "files_deleted": sum(tally.files for tally in done.deleted.values()),
        "released": list(done.released),
        "broken": list(done.broken),
        "remains": [str(left.path) for left in done.remains],
        "newer": [str(path) for path in done.newer],
    }


@procedure(_REWRITING)
def expire_rows(
    session: Session, table: str, column: str, before: str, note: str = "", *, confirm: bool = False
) -> Row:
    """Remove the rows in which a column is before a value: a number, or a time (ISO 8601)."""
    target = open_table(session, table)
    question = f"Remove rows with {column} before {before} from {table}? This cannot be undone."
    check_confirmed(question, confirm=confirm)
    return _rewriting(target.expire_rows(column, before, note=note))


@procedure(_REWRITING)
def forget_deletes(
    session: Session, table: str, group: str, before: str, note: str = "", *, confirm: bool = False
) -> Row:
    """Forget deletes with a smaller first ordering value, if no older event of the group will come."""
    target = open_table(session, table)
    check_confirmed(f"Forget deletes of {group} before {before} in {table}? This cannot be undone.", confirm=confirm)
    return _rewriting(target.forget_deletes(group, before, note=note))


@procedure(_REWRITING)
def rewrite(
    session: Session, table: str, column: str, expression: str, note: str = "", *, confirm: bool = False
) -> Row:
    """Change the values of a column in all rows so far: ``expression => 'sha2(email, 256)'``. Versions stay."""
    target = open_table(session, table)
    check_rewritable(target.schema, column)
    function = SqlFunction(session.spark, column, expression, target.schema.column(column).type)
    check_confirmed(f"Rewrite {column} in all rows of {table}? This cannot be undone.", confirm=confirm)
    return _rewriting(target.rewrite(column, function, note=note))


def _rewriting(result: Any) -> Row:
    shown = {name: getattr(result, name) for name in ("cut", "file_groups", "rows", "deletes")}
    return {**shown, "changed": bool(result.entry)}
