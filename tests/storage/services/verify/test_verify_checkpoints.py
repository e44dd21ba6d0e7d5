"""Verify and checkpoints: wrong checkpoints, and checkpoints after a damaged entry."""

from __future__ import annotations

import pytest

from tests.storage.support.damage import Damage, lane, resealed, shop, verified, wrong
from tests.storage.support.shop import append, new_uri, orders, payments
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.sealed import seal
from weft.storage.core.names import TABLE_LANE, LaneName, checkpoint_folder, checkpoint_path
from weft.storage.services.verify.findings import Severity


@pytest.fixture
def table() -> Table:
    return shop(new_uri())


def test_a_checkpoint_gives_the_state_after_a_damaged_entry(table: Table) -> None:
    table = tuned(table, table_checkpoint_every=6)
    damage = Damage(table)
    table.compact()
    append(table, payments(1), "payments")
    table.compact()
    path = damage.flip(lane("", 5))
    (base, *_) = [file.base for file in table.state().slices.values() if file.base]
    damage.flip(base.path)
    found = wrong(table)
    assert [(finding.invariant, finding.where) for finding in found] == [("S1", path), ("S7", base.path)]


def test_checkpoints_are_compared_with_the_replay(table: Table) -> None:
    table = tuned(table, table_checkpoint_every=2, lane_checkpoint_every=2)
    damage = Damage(table)
    table.savepoint("one")
    append(table, orders(7), "orders")
    assert verified(table).checked["checkpoints"] == 2
    for where in (TABLE_LANE, LaneName("orders")):
        (path,) = damage.paths(checkpoint_folder(where))
        before = damage.content(path)
        damage.overwrite(path, before[:-5] + b"12345")
        assert [(f.severity, f.where) for f in wrong(table)] == [(Severity.WARNING, path)]
        damage.overwrite(path, resealed(before, stamp=1))
        (finding,) = wrong(table)
        assert (finding.severity, finding.where) == (Severity.ERROR, path)
        assert "delete" in finding.hint
        damage.overwrite(path, resealed(before, head_id="0" * 32))
        (finding,) = wrong(table)
        assert finding.where == path
        damage.remove(path)
    assert wrong(table) == []


@pytest.mark.parametrize("where", [TABLE_LANE, LaneName("orders")], ids=["table lane", "lane of a writer"])
@pytest.mark.parametrize("changes", [{"features": ["later"]}, {"version": 99}, {"unheard": 1}], ids=str)
def test_an_intact_checkpoint_of_another_version_is_no_damage(
    table: Table, where: LaneName, changes: dict[str, object]
) -> None:
    table = tuned(table, table_checkpoint_every=2, lane_checkpoint_every=2)
    damage = Damage(table)
    table.savepoint("one")
    append(table, orders(7), "orders")
    (path,) = damage.paths(checkpoint_folder(where))
    damage.overwrite(path, resealed(damage.content(path), **changes))
    (finding,) = (finding for finding in verified(table).findings if finding.where == path)
    assert finding.severity == Severity.INFO
    assert "another version" in finding.what


def test_an_intact_checkpoint_of_the_table_lane_in_its_earlier_form_is_no_damage(table: Table) -> None:
    """Version 2 had the digest in the first line."""
    damage = Damage(table)
    path = checkpoint_path(TABLE_LANE, table.state().head, "a" * 32)
    damage.store.put(path, seal(b'{"version": 2}'))
    (finding,) = (finding for finding in verified(table).findings if finding.where == path)
    assert finding.severity == Severity.INFO


def test_a_checkpoint_of_an_entry_that_does_not_exist(table: Table) -> None:
    damage = Damage(table)
    path = checkpoint_path(TABLE_LANE, 99, "a" * 32)
    damage.store.put(path, b"")
    (finding,) = wrong(table)
    assert (finding.severity, finding.where) == (Severity.WARNING, path)
    assert "does not exist" in finding.what
