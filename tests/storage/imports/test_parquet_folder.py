"""A folder of Parquet files, which may be the table of another format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.imports.sources import ROWS, parquet
from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import open_foreign


@pytest.mark.parametrize(
    ("kind", "mark"),
    [
        ("delta", "_delta_log/00000000000000000000.json"),
        ("hudi", ".hoodie/hoodie.properties"),
        ("iceberg", "metadata/00000-5d1ab0a2.metadata.json"),
        ("iceberg", "metadata/v1.metadata.json"),
        ("paimon", "schema/schema-0"),
    ],
)
def test_the_files_of_a_table_are_not_read_as_a_folder_of_parquet(kind: str, mark: str, tmp_path: Path) -> None:
    """They have rows that the table has deleted, and every old version of a row."""
    location = parquet(tmp_path / "source")
    open_foreign("parquet", location)
    entry = tmp_path / "source" / mark
    entry.parent.mkdir()
    entry.touch()
    with pytest.raises(InvalidInput, match=rf"(?s)source is a table of {kind}: .*--from {kind}"):
        open_foreign("parquet", location)
    assert open_foreign("parquet", f"{location}/0.parquet").rows == len(ROWS)
