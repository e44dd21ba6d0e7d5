"""The table of the read benchmarks has the requested shape."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.wide_table import GROUPS, Shape, events


@pytest.mark.parametrize("columns", [7, 8, 9, 63, 64, 300])
def test_a_shape_has_the_number_of_columns_that_it_declares(columns: int) -> None:
    shape = Shape(keys=10, columns=columns)
    config = shape.config()
    assert len(config["columns"]) == columns
    assert sorted(["k", *(name for group in config["groups"].values() for name in group["columns"])]) == sorted(
        config["columns"]
    )
    rng = np.random.default_rng(1)
    sent = [events(shape, group, np.arange(3), 0, rng).schema.names for group in GROUPS]
    assert {name for names in sent for name in names} == set(config["columns"])
