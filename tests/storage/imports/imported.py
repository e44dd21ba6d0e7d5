"""Comparison of an import with what the reader of the format shows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from tests.storage.imports.foreign_spark import in_order
from weft import Table
from weft.storage.imports.foreign_table import ForeignTable
from weft.storage.imports.import_table import import_table
from weft.storage.imports.translate import translate


def read(source: ForeignTable, names: Sequence[str]) -> pa.Table:
    """All rows of a source."""
    return pa.Table.from_batches(source.read(names), pa.schema([source.schema.field(name) for name in names]))


def check_read(source: ForeignTable, shown: pa.Table) -> None:
    """The source has exactly these rows, and says so if it tells a number."""
    names = [name for name in shown.column_names if not name.startswith("_hoodie_")]
    assert sorted(source.schema.names) == sorted(names)
    assert in_order(read(source, names), names) == in_order(shown, names)
    assert source.rows in {None, shown.num_rows}


def check_import(source: ForeignTable, shown: pa.Table, key: Sequence[str] | None = None) -> None:
    """A table that is made of the source with its proposed configuration shows exactly these rows."""
    names = [name for name in shown.column_names if not name.startswith("_hoodie_")]
    uri = f"memory://imported/{uuid.uuid4().hex}"
    done = import_table(uri, source, translate(source.kind, source.declaration(), key=key).config)
    assert (done.rows, done.keys) == (shown.num_rows, shown.num_rows)
    assert in_order(Table.open(uri).snapshot().to_arrow(names), names) == in_order(shown, names)
