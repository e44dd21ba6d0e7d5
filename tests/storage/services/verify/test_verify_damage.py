"""Every kind of damage, done to a real table: verify reports it and its place, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.damage import Damage, append_table, lane, shop, verified, wrong
from tests.storage.support.shop import SHOP, append, new_uri, payments
from tests.tuning import tune
from weft import Table, verify_table
from weft.storage.core.names import LaneName, Path, slot_path
from weft.storage.errors import Conflict, CorruptData, NotFound
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.services.verify.findings import MAX_ALIKE
from weft.storage.store.open_store import open_store


@pytest.fixture
def table() -> Table:
    return shop(new_uri())


@pytest.fixture
def damage(table: Table) -> Damage:
    return Damage(table)


Do = Callable[[Damage], object]


def log_of(damage: Damage, number: int = -1) -> str:
    """The log file of a commit."""
    (entry,) = [entry for entry in damage.entries("orders") if entry.kind == "DATA"][number:][:1]
    return entry.files[0].file.path


def index(change: Callable[[dict[str, Any]], object]) -> Do:
    """Change the index in the second-last commit of orders."""
    return lambda d: (
        d.edit(d.slot("orders", "DATA", -2), lambda entry: change(entry["files"][0]["index"])),
        log_of(d, -2),
    )[1]


def renamed(damage: Damage) -> str:
    """Give the log of the last commit the name of the previous commit."""
    path = log_of(damage)
    other = path.replace("00000000000000000006-", "00000000000000000005-")
    damage.store.put(Path(other), damage.content(path))
    damage.remove(path)
    return damage.edit(lane("orders", 6), lambda e: e["files"][0]["file"].update(path=other))


def add_block(blocks: dict[str, Any]) -> None:
    """Append an empty block."""
    blocks["offset"].append(blocks["offset"][-1] + blocks["length"][-1])
    for values in (blocks["length"], blocks["rows"], blocks["crc32"]):
        values.append(0)
    ranges = (blocks["ordering_min"], blocks["ordering_max"])
    for values in (blocks["key_min"], blocks["key_max"], *(values for part in ranges for values in part.values())):
        values.append(None)


def later(values: list[Any]) -> list[Any]:
    return [value if value is None else value + 1 for value in values]


def promise(damage: Damage, seq: int, value: int) -> str:
    return damage.edit(lane("orders", seq), lambda entry: entry.update(watermarks={"1": {"value": value, "late": 0}}))


ENTRIES: dict[str, tuple[Do, list[str]]] = {
    "a flipped bit in a commit": (lambda d: d.flip(lane("orders", 5)), ["S1"]),
    "a flipped bit in a claim": (lambda d: d.flip(lane("orders", 4)), ["S1"]),
    "an empty entry": (lambda d: d.overwrite(lane("orders", 5), b"\n"), ["S1"]),
    "an entry of another slot": (lambda d: d.overwrite(lane("orders", 6), d.content(lane("orders", 5))), ["S1"]),
    "a missing entry": (lambda d: d.remove(lane("orders", 5)), ["S2"]),
    "several missing entries": (lambda d: (d.remove(lane("orders", 4)), d.remove(lane("orders", 5)))[0], ["S2"]),
    "a replaced entry": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(prev_id="0" * 32)), ["S2"]),
    "a first entry that follows another": (
        lambda d: d.edit(lane("orders", 1), lambda e: e.update(prev_id="x")),
        ["S2"],
    ),
    "a commit of a fenced writer": (lambda d: d.append("orders", epoch=1, batch=4, files=[], rows=0), ["S3"]),
    "a claim that skips one": (lambda d: d.edit(lane("payments", 1), lambda e: e.update(epoch=2)), ["S3", "S3"]),
    "a claim for no barrier": (lambda d: d.edit(lane("orders", 4), lambda e: e.update(intent=2)), ["S3"]),
    "a commit of another stream": (lambda d: d.edit(lane("orders", 5), lambda e: e.update(stream="payments")), ["S5"]),
    "a batch twice": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(batch=2)), ["S6"]),
    "a batch that is skipped": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(batch=9)), ["S6"]),
    "a promise that falls": (lambda d: (promise(d, 5, 10), promise(d, 6, 9))[1], ["S23"]),
    "a promise that is forgotten": (lambda d: (promise(d, 5, 10), lane("orders", 6))[1], ["S23"]),
    "a number of rows that differs from that of the files": (
        lambda d: d.edit(lane("orders", 6), lambda e: e.update(rows=9)),
        ["S7"],
    ),
    "a log named by another slot": (renamed, ["S17"]),
    "a stamp that went back": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(stamp=5)), ["S13"]),
    "a commit that knew less than the one before": (
        lambda d: d.edit(lane("orders", 6), lambda e: e.update(commit_id=f"{'0' * 32}-1")),
        ["S31"],
    ),
    "a commit time that went back": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(committed_at_ms=5)), [""]),
    "a revision that does not exist": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(table_rev=3)), ["S19"]),
    "a revision that went back": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(table_rev=0)), ["S19"]),
    "a kind of a newer version": (lambda d: d.edit(lane("orders", 6), lambda e: e.update(kind="TWIST")), [""]),
}
TABLE: dict[str, tuple[Do, list[str]]] = {
    "an epoch": (lambda d: d.edit(lane("", 4), lambda e: e.update(epoch=1)), ["S3"]),
    "a replaced entry": (lambda d: d.edit(lane("", 4), lambda e: e.update(prev_id="0" * 32)), ["S2"]),
    "a lane twice": (lambda d: append_table(d, kind="LANE_ADD", name="orders", lane_id=3, stream="orders"), ["S15"]),
    "a plan with a later snapshot": (lambda d: d.edit(lane("", 4), lambda e: e.update(table=4)), ["K1"]),
    "slices of a closed plan": (lambda d: d.edit(lane("", 5), lambda e: e.update(plan_id="x")), ["K3"]),
    "rows that are rewritten without the feature": (
        lambda d: d.edit(lane("", 5), lambda e: e.update(rewrites="erase of 1 keys")),
        ["X2"],
    ),
    "a slice on top of another one": (lambda d: d.edit_slice(lambda f: f.update(parent={"orders": 1})), ["S10"]),
    "a slice with another cut": (lambda d: d.edit_slice(lambda f: f["cut"].update(payments=1)), ["S8", "S8", "S8"]),
    "a slice of an unknown revision": (lambda d: d.edit_slice(lambda f: f.update(rev=3)), ["S19"]),
    "files named by another plan": (lambda d: d.edit(lane("", 5), misnamed(d)), ["S17"] * 4),
    "a savepoint of a later snapshot": (
        lambda d: append_table(d, kind="SAVEPOINT", name="s", table=9, lanes={}, note=""),
        ["S9"],
    ),
    "a mark without existing entries": (
        lambda d: append_table(d, kind="MARK", began_at_ms=d.entries("")[-1].committed_at_ms, lanes={}),
        ["S24"],
    ),
    "a mark with an earlier time": (
        lambda d: append_table(
            d, kind="MARK", began_at_ms=1, lanes={name: len(d.entries(name)) for name in ("orders", "payments")}
        ),
        ["S24"],
    ),
    "a clean up to a later entry": (lambda d: append_table(d, kind="CLEAN_INTENT", oldest_retained=9), ["S16"]),
    "a DONE without a barrier": (lambda d: append_table(d, kind="DONE", intent=2, heads={}), ["S2"]),
    "a slice that was left out": (
        lambda d: (d.edit(lane("", 5), lambda e: e["slices"].pop()), lane("orders", 2))[1],
        ["S8", "S8", "S8"],
    ),
}


def misnamed(damage: Damage) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        old = entry["slices"][0]["base"]["path"]
        path = old.replace("00000000000000000004-", "00000000000000000002-")
        damage.store.put(path, damage.content(old))
        damage.store.delete(old)
        for made in entry["slices"]:
            if made["base"]["path"] == old:
                made["base"]["path"] = path

    return change


FILES: dict[str, tuple[Do, list[str]]] = {
    "a flipped bit in a block": (lambda d: d.flip(log_of(d), 0.4), ["S7"]),
    "a flipped bit in a log's footer": (lambda d: d.flip(log_of(d), 0.99), ["S7"]),
    "a missing log": (lambda d: d.remove(log_of(d)), ["S7"]),
    "a log that was cut off": (lambda d: d.overwrite(log_of(d), d.content(log_of(d))[:-9]), ["S7"]),
    "a flipped bit in a base": (lambda d: d.flip(d.paths("base")[0], 0.1), ["S7"]),
    "a flipped bit in a base's footer": (lambda d: d.flip(d.paths("base")[0], 0.99), ["S7"]),
    "a missing base": (lambda d: d.remove(d.paths("base")[0]), ["S7"]),
    "a base that was cut off": (lambda d: d.overwrite(d.paths("base")[0], d.content(d.paths("base")[0])[:99]), ["S7"]),
    "a missing shadow": (lambda d: d.remove(d.paths("shadow")[0]), ["S7"]),
    "a flipped bit in a shadow": (lambda d: d.flip(d.paths("shadow")[0], 0.2), ["S7"]),
}
INDEXES: dict[str, tuple[Do, list[str]]] = {
    "keys in another bucket's range": (index(lambda i: i["ranges"].update(bucket=[0, 2, 1, 3])), ["S15"]),
    "keys of another bucket": (index(lambda i: i["ranges"]["rows"].__setitem__(slice(0, 2), [1, 8])), ["S7"]),
    "a wrong number of deletes": (index(lambda i: i["ranges"]["deletes"].__setitem__(0, 1)), ["S7"]),
    "another range of keys": (index(lambda i: i["blocks"].update(key_max=later(i["blocks"]["key_max"]))), ["S12"]),
    "another range of versions": (index(lambda i: i["blocks"]["ordering_min"].update({"1": [4]})), ["S12"]),
    "no range of versions": (index(lambda i: i["blocks"].update(ordering_min={})), ["S12"]),
    "another checksum of a block": (index(lambda i: i["blocks"].update(crc32=later(i["blocks"]["crc32"]))), ["S7"]),
    "ranges that leave rows out": (index(lambda i: i["ranges"]["start"].__setitem__(1, 9)), ["S7"]),
    "a block that the file does not have": (index(lambda i: add_block(i["blocks"])), ["S7"]),
    "fewer blocks": (index(lambda i: i["blocks"].update(rows=[])), ["S7"]),
}


@pytest.mark.parametrize(
    ("do", "invariants"),
    [pytest.param(*case, id=name) for kind in (ENTRIES, TABLE, FILES, INDEXES) for name, case in kind.items()],
)
def test_exactly_the_damage_is_found(table: Table, damage: Damage, do: Do, invariants: list[str]) -> None:
    where = do(damage)
    found = wrong(table)
    assert [finding.invariant for finding in found] == invariants, "\n".join(map(str, found))
    assert any(str(where).removesuffix(".json") in finding.where for finding in found)


def test_deletes_that_the_index_counts_wrongly_in_two_places(table: Table, damage: Damage) -> None:
    """The sums agree, the ranges do not."""

    def change(entry: dict[str, Any]) -> None:
        deletes = entry["files"][0]["index"]["ranges"]["deletes"]
        deletes[0], deletes[1] = deletes[0] - 1, deletes[1] + 1

    damage.edit(damage.slot("orders", "DATA", 0), change)
    assert wrong(table) == []  # the commit is in slices, so its log is not read any more
    damage.edit(damage.slot("orders", "DATA", 2), change)
    assert [finding.invariant for finding in wrong(table)] == ["S14"]


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["ranges"]["partition"].__setitem__(0, 3),
        lambda index: index["ranges"]["bucket"].pop(),
        lambda index: index["partitions"].clear(),
    ],
)
@pytest.mark.parametrize("number", [0, -1])
def test_an_index_that_contradicts_itself(
    table: Table, damage: Damage, change: Callable[[dict[str, Any]], object], number: int
) -> None:
    """For a commit in slices (commit 0), and for one that is read from its log file."""
    damage.edit(damage.slot("orders", "DATA", number), lambda entry: change(entry["files"][0]["index"]))
    (finding,) = wrong(table)
    assert finding.invariant == "S7"
    assert log_of(damage, number) in finding.where + finding.what


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.update(bits=3),
        lambda file: file["groups"].append(9),
        lambda file: file["columns"].reverse(),
    ],
)
def test_a_log_file_of_another_schema(table: Table, damage: Damage, change: Callable[[dict[str, Any]], object]) -> None:
    damage.edit(damage.slot("orders", "DATA"), lambda entry: change(entry["files"][0]))
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S19", log_of(damage))]


def test_blocks_with_wrong_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, block_min_bytes=40, block_max_bytes=160)
    damage = Damage(shop(new_uri()))

    def change(entry: dict[str, Any]) -> None:
        rows = entry["files"][0]["index"]["blocks"]["rows"]
        rows[0], rows[1] = rows[0] + 1, rows[1] - 1

    damage.edit(damage.slot("orders", "DATA", -2), change)
    found = wrong(Table.open(damage.uri))
    assert {(finding.invariant, finding.where) for finding in found} == {("S7", log_of(damage, -2))}
    assert [f"block {number} has" in finding.what for number, finding in enumerate(found)] == [True, True]


def test_a_schema_that_cannot_be_read(table: Table, damage: Damage) -> None:
    """As with an entry that lacks a member, a newer version may have written it."""
    path = damage.edit(lane("", 1), lambda entry: entry["table_schema"]["groups"][0].pop("id"))
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S2", path), ("", path)]


def test_a_lane_with_the_name_of_the_table_lane(table: Table, damage: Damage) -> None:
    path = append_table(damage, kind="LANE_ADD", name="", lane_id=3, stream="orders")
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S2", path)]


def test_a_lane_id_that_is_used_twice(table: Table, damage: Damage) -> None:
    path = damage.edit(lane("", 3), lambda e: e.update(lane_id=1))
    first, *others = wrong(table)
    assert (first.invariant, first.where) == ("S13", path)
    assert {finding.invariant for finding in others} == {"S5"}  # rows can no longer be traced to their commits


@pytest.mark.parametrize("name", list(FILES))
def test_a_shallow_verify_finds_missing_and_truncated_files(table: Table, damage: Damage, name: str) -> None:
    where = FILES[name][0](damage)
    found = [finding.where for finding in wrong(table, deep=False)]
    assert found == ([] if "flipped" in name else [where])


def test_a_removed_end_of_a_lane_is_found_through_slices(table: Table, damage: Damage) -> None:
    for seq in (6, 5, 4, 3):
        damage.remove(lane("orders", seq))
    found = wrong(table)
    assert {finding.invariant for finding in found} == {"S4", "S5"}
    assert {"lane 'orders'"}.issuperset({f.where for f in found if f.invariant == "S4" and "slice" not in f.where})


def test_a_commit_after_the_end_of_a_closed_lane(table: Table, damage: Damage) -> None:
    commit = damage.entries("orders")[5].model_dump()
    closed = table.close_lane("orders")
    copied = ("kind", "stream", "query_id", "rows_ignored", "source")
    append_lane(damage, "orders", rows=0, files=[], batch=4, **{name: commit[name] for name in copied})
    (finding,) = wrong(table)
    assert (finding.invariant, finding.where) == ("S4", lane("orders", closed + 1))


def append_lane(damage: Damage, name: str, **changes: object) -> str:
    path = damage.append(name, **changes)
    return damage.edit(path, lambda e: [e.pop(member, None) for member in ("owner", "intent")])


def test_a_barrier_whose_done_does_not_match_its_claims(table: Table, damage: Damage) -> None:
    closed = table.close_lane("orders")
    path = damage.edit(damage.slot("", "DONE"), lambda e: e.update(heads={"orders": closed + 3}))
    (finding,) = wrong(table)
    assert (finding.invariant, finding.where) == ("S18", path)


def test_an_undeclared_lane(table: Table, damage: Damage) -> None:
    damage.store.put(slot_path(LaneName("stray"), 1), damage.content(lane("orders", 1)))
    assert [(f.invariant, f.where) for f in wrong(table)] == [("S5", "_weft/timeline/lanes/stray")]


def test_a_missing_file_that_only_a_savepoint_needs_is_found(table: Table, damage: Damage) -> None:
    table.savepoint("keep")
    table.compact()
    newest = {file.path for made in table.state().slices.values() for file in (made.base, made.shadow) if file}
    older = next(path for path in damage.paths("base") if path not in newest)
    damage.flip(older)
    (finding,) = wrong(table)
    assert (finding.invariant, finding.where) == ("S7", older)
    damage.remove(older)
    (finding,) = wrong(table, deep=False)
    assert (finding.invariant, finding.where) == ("S7", older)


def test_after_a_damaged_entry_of_the_table_lane_the_state_is_unknown(table: Table, damage: Damage) -> None:
    """Consequences of an unreadable object are not reported as further damage."""
    table.compact()
    append(table, payments(1), "payments")
    table.compact()
    path = damage.flip(lane("", 5))
    damage.remove(log_of(damage))
    found = wrong(table)
    assert [(finding.invariant, finding.where) for finding in found] == [("S1", path), ("S7", log_of(damage))]
    assert any("was checked up to there" in finding.what for finding in verified(table).infos)


def test_a_table_that_is_completely_unreadable(table: Table, damage: Damage) -> None:
    damage.flip(lane("", 1))
    assert [finding.invariant for finding in wrong(table)] == ["S1", "S2"]


def test_verify_needs_a_table() -> None:
    table = Table.create(new_uri(), SHOP)
    Damage(table).remove(lane("", 1))
    with pytest.raises(NotFound):
        verify_table(table.uri)


@pytest.mark.parametrize("slot", [1, 3, 5])
def test_a_table_that_cannot_be_opened_is_verified(table: Table, damage: Damage, slot: int) -> None:
    """If the table lane is damaged the table cannot be opened; verify reports this and all other problems at once."""
    path = damage.flip(lane("", slot))
    other = damage.flip(lane("orders", 3))
    with pytest.raises(CorruptData):
        Table.open(table.uri)
    found = {finding.where for finding in verify_table(table.uri).errors}
    assert path in found
    assert (other in found) == (slot > 1), "the lanes are not known without the first entry"


def test_files_of_missing_commits_are_reported(table: Table, damage: Damage) -> None:
    """It is unknown whether a commit will still be published, or was removed from the end of its lane."""
    (head,) = (lane.head for lane in Inspection(table.uri).lanes() if lane.lane == "orders")
    assert not any("for entries after" in finding.what for finding in verified(table).infos)
    damage.remove(lane("orders", head))
    report = verified(table)
    assert report.ok
    (told,) = [finding for finding in report.infos if "for entries after" in finding.what]
    assert told.where == "lane 'orders'"
    assert f"1 log files are for entries after {head - 1}" in told.what
    table = other_process(table.uri, FakeClock())
    table.fence("orders")
    table.clean()
    assert not any("for entries after" in finding.what for finding in verified(table).infos)


def test_a_table_without_its_first_entry_is_not_taken_for_a_missing_table(table: Table, damage: Damage) -> None:
    """A new table in its place would make the old entries permanently unreadable."""
    first = damage.remove(lane("", 1))
    before = damage.paths("")
    with pytest.raises(CorruptData, match=r"first entry .* is missing") as error:
        Table.open(table.uri)
    assert first in error.value.hint
    with pytest.raises(Conflict, match="whose first entry is missing"):
        Table.create(table.uri, SHOP)
    assert damage.paths("") == before
    assert {finding.where for finding in verify_table(table.uri).errors} == {first}
    for path in damage.paths("_weft/timeline/table"):
        damage.remove(path)
    (found,) = verify_table(table.uri).errors
    assert "the table lane is missing" in found.what
    with pytest.raises(Conflict):
        Table.create(table.uri, SHOP)


def test_lists_and_indexes_in_sidecars_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, inline_list_bytes=10, inline_index_bytes=10)
    table = shop(new_uri())
    damage = Damage(table)
    assert wrong(table) == []
    (slices,) = damage.paths("_weft/index/_table")
    before = damage.content(slices)
    for do in (damage.flip, damage.remove):
        do(slices)
        assert [(f.invariant, f.where) for f in wrong(table)] == [("S7", slices)]
        damage.store.put(slices, before)
    *_, newest = damage.paths("_weft/index/orders")
    damage.flip(newest)
    assert [(f.invariant, f.where) for f in wrong(table)] == [("S7", newest)]
    damage.remove(newest)
    assert [(f.invariant, f.where) for f in wrong(table, deep=False)] == [("S7", newest)]


def test_folds_are_checked_like_logs_and_like_slices(table: Table) -> None:
    append(table, payments(1, 2, 3, ts=4), "payments")
    table.fold()
    damage = Damage(table)
    assert wrong(table) == []
    path = damage.slot("", "FOLD")
    before = damage.content(path)
    for change, invariants in (
        (lambda e: e["file_groups"][0].update(start={"orders": 1}), ["S11"]),
        (lambda e: e["file_groups"].pop(), ["S8", "S8"]),
        (lambda e: e["to"].update(orders=5), ["S8", "S8", "S8"]),
        (lambda e: e["files"][0]["index"]["ranges"]["deletes"].__setitem__(0, 9), ["S7"]),
        (lambda e: e["files"][0]["index"]["blocks"].update(key_min=[5]), ["S12"]),
        (lambda e: e["files"][0].update(form="event"), ["S7"]),
    ):
        damage.edit(path, change)
        assert [finding.invariant for finding in wrong(table)] == invariants, "\n".join(map(str, wrong(table)))
        damage.overwrite(path, before)
    (file,) = damage.paths("log/_fold")
    damage.flip(file)
    assert [(f.invariant, f.where) for f in wrong(table)] == [("S7", file)]


def test_harmless_findings_are_infos(table: Table, damage: Damage) -> None:
    store = FaultyStore(open_store(table.uri))
    dying = other_process(table.uri, FakeClock(), store)
    dying.state()
    damage.store.put("base/b02-00000/README", b"?")
    damage.store.put("log/orders/0000000001-00000000000000000003-00000-" + "a" * 32 + ".arrow", b"orphan")
    append_table(damage, kind="PLAN", plan_id="p" * 32, table=5, cut={"orders": 6, "payments": 2}, file_groups=1)
    report = verified(table)
    assert report.ok
    assert not report.errors
    told = "\n".join(finding.what for finding in report.infos)
    assert "1 unneeded files, 6 bytes: 1 log" in told
    assert "README" in told
    assert "has not ended" in told


def test_a_report_is_readable_and_bounded(table: Table, damage: Damage) -> None:
    seen: list[tuple[int, int]] = []
    report = table.verify(progress=lambda stage: seen.append((stage.done, stage.total)))
    assert "nothing is wrong" in str(report)
    assert "13 entries" in str(report)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 13
    with table.writer("payments") as writer:
        for number in range(MAX_ALIKE + 20):
            writer.append(payments(number))
    for seq in range(4, MAX_ALIKE + 24):
        damage.edit(lane("payments", seq), lambda e: e.update(rows=7))
    report = verified(table)
    assert len(report.errors) == MAX_ALIKE
    assert report.omitted == 20
    assert "20 more" in str(report)


def test_a_file_that_the_store_does_not_return(table: Table, damage: Damage) -> None:
    store = FaultyStore(open_store(table.uri))
    store.faults.append(Fault("open_input", log_of(damage)))
    (finding,) = other_process(table.uri, FakeClock(), store).verify().errors
    assert (finding.invariant, finding.where) == ("S7", log_of(damage))
    assert "the network is down; reading it fails" in finding.what
