"""Shared by the tests of the live view: a table of two files, and the name of a view that is dropped after the test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.streams.read.relation.planner import Files, rows


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path / "table")
    made.add(rows(0, 40))
    made.add(rows(40, 30))
    return made


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    made = f"view_{uuid.uuid4().hex[:8]}"
    yield made
    spark.catalog.dropTempView(made)
