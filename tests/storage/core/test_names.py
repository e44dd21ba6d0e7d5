"""Paths that weft builds are parsed back, and no others are accepted."""

from __future__ import annotations

import pytest

from weft.storage.core import names
from weft.storage.core.names import TABLE_LANE, Kind, LaneName, ParsedPath, Path

ID = "0123456789abcdef" * 2
ORDERS = LaneName("orders")
LOG = names.log_path(ORDERS, 3, 7, 2, ID)


@pytest.mark.parametrize(
    ("path", "parsed"),
    [
        (names.slot_path(TABLE_LANE, 7), ParsedPath(Kind.ENTRY, slot=7)),
        (names.slot_path(ORDERS, 7), ParsedPath(Kind.ENTRY, ORDERS, slot=7)),
        (names.archive_path(TABLE_LANE, 2), ParsedPath(Kind.ARCHIVE, slot=2)),
        (names.archive_path(ORDERS, 2), ParsedPath(Kind.ARCHIVE, ORDERS, slot=2)),
        (LOG, ParsedPath(Kind.LOG, ORDERS, epoch=3, slot=7)),
        (names.log_index_path(LOG), ParsedPath(Kind.LOG_INDEX, ORDERS, epoch=3, slot=7)),
        (names.fold_path(9, ID), ParsedPath(Kind.FOLD, slot=9)),
        (names.log_index_path(names.fold_path(9, ID)), ParsedPath(Kind.FOLD_INDEX, slot=9)),
        (names.base_path("day=1%2F2/b04-00003", 9, ID), ParsedPath(Kind.BASE, slot=9)),
        (names.shadow_path("b04-00003", 9, ID), ParsedPath(Kind.SHADOW, slot=9)),
        (names.table_index_path(9, ID), ParsedPath(Kind.TABLE_INDEX, slot=9)),
        (names.checkpoint_path(TABLE_LANE, 9, ID), ParsedPath(Kind.CHECKPOINT, slot=9)),
        (names.checkpoint_path(ORDERS, 9, ID), ParsedPath(Kind.CHECKPOINT, ORDERS, slot=9)),
        (names.pin_path(ID), ParsedPath(Kind.PIN)),
        (names.heartbeat_path(ORDERS, 3, 12345, ID), ParsedPath(Kind.HEARTBEAT, ORDERS, epoch=3, at_ms=12345)),
        (f"{names.PROBES}/{ID}", ParsedPath(Kind.PROBE)),
        (names.service_path("clean-service"), ParsedPath(Kind.SERVICE)),
    ],
)
def test_parsing_a_path_returns_its_parts(path: str, parsed: ParsedPath) -> None:
    assert names.parse_path(Path(path)) == parsed


@pytest.mark.parametrize(
    "path",
    [
        "",
        "base/notes.txt",
        f"base/{9:020d}-{ID}.parquet",  # without a file group
        LOG.replace("log/orders", "log"),
        LOG.replace("orders", "or ders"),
        LOG.replace(".arrow", ".json"),
        LOG.upper(),
        f"{LOG}.bak",
        f"backup/{LOG}",
        names.slot_path(ORDERS, 7).replace("lanes", "Lanes"),
        names.pin_path("no-id"),
    ],
)
def test_other_paths_are_not_parsed(path: str) -> None:
    assert names.parse_path(Path(path)) is None
