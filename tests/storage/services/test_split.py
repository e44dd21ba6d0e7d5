"""Splits: the number of buckets changes while everything goes on. The oracle is a dict of rows."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.deaths import Died, changes, deaths
from tests.faulty_store import FakeClock, Fault, FaultyStore
from tests.storage.support.damage import Damage
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments, statuses
from tests.tuning import tuned
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.log.features import BUCKETS, WRITER_FEATURES
from weft.storage.core.log.file_refs import FileGroup, Replaced, SliceFile
from weft.storage.core.log.group_set import GroupUnion
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.regroup import may_follow, reached
from weft.storage.core.names import LaneName
from weft.storage.core.plan.due_policy import SPLIT_BYTES, DuePolicy, propose_buckets
from weft.storage.environment import Environment
from weft.storage.errors import InvalidInput
from weft.storage.services import split as splitting
from weft.storage.services.due_work import find_due
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.services.inspect.measure import measure
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import WriteTicket, write_rows

Rows = dict[int, dict[str, Any]]


class Shop:
    """A table beside a dict with the same events; two writers that stay open."""

    def __init__(self, chance: random.Random, uri: str, **config: Any) -> None:
        self.chance = chance
        self.table = Table.create(uri, {**SHOP, "buckets": 2, **config})
        self.writers = {stream: self.table.writer(stream).__enter__() for stream in ("orders", "payments")}
        self.expected: Rows = {}
        self.before: list[tuple[str, Rows]] = []
        self.ts = 0

    def write(self) -> None:
        ids = self.chance.sample(range(200), self.chance.randint(1, 40))
        self.ts += 1
        if self.chance.random() < 1 / 4:
            self.writers["orders"].append(orders(*ids, ts=self.ts, op="D"))
            for key in ids:  # a row delete: only newer events of the group show the row again
                self.expected.pop(key, None)
            return
        self.writers["orders"].append(orders(*ids, status=f"s{self.ts}", ts=self.ts))
        for key in ids:
            self.expected.setdefault(key, {}).update(status=f"s{self.ts}", ots=self.ts)

    def write_with_old_buckets(self, meanwhile: Callable[[], object]) -> None:
        """A commit that began before something, and that is published after it."""
        writer = self.writers["orders"]
        begun = writer.begin()
        assert isinstance(begun, WriteTicket)
        self.ts += 1
        ts = self.ts
        written = write_rows(begun, orders(*range(0, 200, 3), status=f"s{ts}", ts=ts))
        meanwhile()
        writer.commit(begun, [written])
        for key in range(0, 200, 3):
            self.expected.setdefault(key, {}).update(status=f"s{ts}", ots=ts)

    def check(self) -> None:
        opened = Table.open(self.table.uri)
        snapshot = opened.snapshot()
        assert rows_of(snapshot.to_arrow()) == self.expected
        some = self.chance.sample(range(220), 15)
        assert rows_of(snapshot.get(some)) == {key: self.expected[key] for key in some if key in self.expected}
        filtered = snapshot.to_arrow(filter=pc.field("id").isin(some) & (pc.field("ots") > 1))
        assert rows_of(filtered) == {
            key: row for key, row in self.expected.items() if key in some and row.get("ots", 0) > 1
        }
        for cut, rows in self.before[-3:]:
            assert rows_of(opened.snapshot(cut).to_arrow()) == rows
            if cut != str(snapshot.cut):
                for table in (opened, tuned(opened, change_task_bytes=100)):
                    changed = [(row["id"], row["_change"]) for row in table.changes(cut).read_all().to_pylist()]
                    assert sorted(changed) == sorted(differences(rows, self.expected).items())
        if len(self.before) % 3 == 0:
            assert self.errors() == []
        self.remember(str(snapshot.cut))

    def remember(self, cut: str) -> None:
        self.before.append((cut, {key: dict(row) for key, row in self.expected.items()}))

    def errors(self) -> list[str]:
        return [str(error) for error in Table.open(self.table.uri).verify().errors]


def rows_of(table: pa.Table) -> Rows:
    rows = table.select(["id", "status", "ots"]).to_pylist()
    found = {row.pop("id"): {name: value for name, value in row.items() if value is not None} for row in rows}
    assert len(found) == table.num_rows, "a key comes twice"
    return found


def differences(before: Rows, after: Rows) -> dict[int, str]:
    changed = {key: "update" for key in before.keys() & after.keys() if before[key] != after[key]}
    changed |= dict.fromkeys(after.keys() - before.keys(), "insert")
    return changed | dict.fromkeys(before.keys() - after.keys(), "delete")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
@pytest.mark.parametrize("small_group_bytes", [0, 2 << 20], ids=["own files", "shared files"])
def test_all_reads_are_exact_while_buckets_are_split_and_merged(seed: int, small_group_bytes: int) -> None:
    """Writers, compactions of some file groups, folds, splits up and down, in any order."""
    chance = random.Random(seed)
    shop = Shop(chance, new_uri(), overlays=seed % 2 == 1)
    table = Table(shop.table.env.tuned(small_group_bytes=small_group_bytes, row_group_rows=7))
    acts: list[Callable[[], object]] = [
        shop.write,
        shop.write,
        shop.write,
        lambda: table.compact(lambda _: chance.random() < 1 / 2),
        table.fold,
        lambda: table.split(chance.choice([1, 2, 4, 8, 16])),
        lambda: splitting.set_buckets(table.writable(), chance.choice([1, 4, 8, 32])),
        lambda: shop.write_with_old_buckets(lambda: table.split(chance.choice([2, 8]))),
    ]
    for _ in range(30):
        chance.choice(acts)()
        shop.check()
    table.split(8)
    shop.check()
    assert {part.group.bits for part in table.snapshot().slices} == {3}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 10))])
def test_changes_between_savepoints_are_exact_across_splits(seed: int) -> None:
    """A file group of one snapshot is several of the other, and each is divided by key range; the logs may be gone."""
    chance = random.Random(seed)
    shop = Shop(chance, new_uri(), buckets=1)
    table = tuned(shop.table, row_group_rows=7, shared_row_group_rows=5)
    acts: list[Callable[[], object]] = [
        shop.write,
        shop.write,
        table.compact,
        table.fold,
        lambda: table.split(chance.choice([1, 2, 4, 8])),
    ]
    for number in range(8):
        for act in chance.choices(acts, k=3):
            act()
        cut = str(table.snapshot().cut)
        shop.remember(cut)
        table.savepoint(f"at-{number}", cut)
    for logs in ("kept", "cleaned"):
        for (since, earlier), (until, later) in itertools.combinations(shop.before, 2):
            divided = tuned(table, change_task_bytes=chance.choice([1, 500, 2_000]))
            changed = divided.changes(since, until, before=True).read_all().to_pylist()
            by_key = {
                row["id"]: (row["_change"], (row["_before"] or {}).get("status"), row["status"]) for row in changed
            }
            assert len(by_key) == len(changed), "a key comes twice"
            assert by_key == {
                key: (change, earlier.get(key, {}).get("status"), later.get(key, {}).get("status"))
                for key, change in differences(earlier, later).items()
            }, (logs, since, until)
        table.clean(dt.timedelta(0))


def test_an_old_writer_process_may_never_learn_of_a_split() -> None:
    """Its commits have the old bits for ever; they are read, folded and compacted in the new file groups."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    table.compact()
    with Table.open(table.uri).writer("orders") as old:
        begun = [old.begin()]
        table.split(16)
        ticket = begun[0]
        assert isinstance(ticket, WriteTicket)
        old.commit(ticket, [write_rows(ticket, orders(*range(50, 150), status="old", ts=2))])
    assert {file.file.bits for file in table.snapshot().files} == {2}
    assert len(contents(table)) == 150
    assert measure(table.snapshot()).events_waiting == 100  # each event is read by four file groups, and counts once
    table.fold()
    assert statuses(table)[149] == "old"
    table.compact()
    assert table.snapshot().files == []
    assert {part.group.bits for part in table.snapshot().slices} == {4}
    assert statuses(table) == {**dict.fromkeys(range(50), "new"), **dict.fromkeys(range(50, 150), "old")}


def test_savepoints_restores_and_undo_across_splits() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    table.compact()
    table.savepoint("before")
    table.split(8)
    append(table, orders(*range(100, 120), ts=2))
    table.split(2)
    later = str(table.snapshot().cut)
    assert len(contents(table, as_of="before")) == 100
    changes = table.changes("before").read_all()
    assert sorted(changes.column("id").to_pylist()) == [*range(100, 120)]
    table.restore("before")
    assert {part.group.bits for part in table.snapshot().slices} == {2}
    assert len(contents(table)) == 100
    assert measure(table.snapshot()).unsplit_groups == 4
    append(table, orders(*range(200, 230), ts=3))
    assert len(contents(table)) == 130
    table.compact()
    assert {part.group.bits for part in table.snapshot().slices} == {1}
    table.restore(later)
    assert len(contents(table)) == 120
    table.split(4)
    assert len(contents(table)) == 120
    assert table.verify().ok


def test_rows_are_changed_while_a_table_has_several_numbers_of_buckets() -> None:
    """Erase, rewrite and expiry keep the bits that they find; what they did holds after the next split."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    table.compact()
    splitting.set_buckets(table.writable(), 16)
    table.compact(lambda part: part.group.bucket < 2)
    append(table, orders(*range(90, 110), ts=2))
    table.rewrite("status", lambda values: pa.array(["x"] * len(values)))
    append(table, orders(5, ts=9))
    table.erase([5, 6, 95], expire_snapshots=True)
    table.expire_rows("ots", 2)
    assert {part.group.bits for part in table.snapshot().slices} == {2, 4}
    expected = {key: "x" for key in range(90, 110) if key != 95}
    assert statuses(table) == expected
    table.split(4)
    assert statuses(table) == expected
    assert table.verify().ok


def test_the_price_of_a_split_is_one_rewrite(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", {**SHOP, "buckets": 2})
    rows, chance = range(200_000), random.Random(1)
    append(table, pa.table({"id": rows, "status": [chance.randbytes(12).hex() for _ in rows], "ots": rows}))
    table.compact()
    before = sum(part.base_bytes for part in table.snapshot().slices)
    result = table.split(8)
    assert 0.8 * before < result.bytes_written < 1.3 * before
    assert result.bytes_read == before
    assert (result.before, result.buckets, result.file_groups, result.rows) == (2, 8, 8, 200_000)
    again = table.split(8)
    assert (again.file_groups, again.bytes_written) == (0, 0)
    merged = table.split(2)
    assert merged.bytes_written < 1.3 * before
    assert merged.rows == 200_000


@pytest.mark.parametrize(
    ("tuning", "opened"),
    [
        ({"small_group_bytes": 0}, 1),  # all 16 parts of a file group in one pass
        ({"small_group_bytes": 0, "row_group_rows": 64, "shared_row_group_rows": 64}, 4),  # four parts in each
        ({}, 1),  # the parts of both file groups share a file
    ],
    ids=["one pass", "four passes", "shared file"],
)
def test_each_file_group_is_read_once_and_its_parts_are_written(
    tmp_path: Path, tuning: dict[str, int], opened: int
) -> None:
    """The number of parts that are written at once bounds the memory."""
    table = Table.create(tmp_path / "t", {**SHOP, "buckets": 2})
    table = Table(table.env.tuned(**tuning))
    append(table, orders(*range(3000)))
    append(table, payments(*range(2900, 3100)), "payments")
    table.compact()
    append(table, orders(*range(0, 3000, 9), op="D", ts=2))
    append(table, orders(*range(2500, 3500), status="late", ts=3))
    rows, before = contents(table), [part.base_bytes + part.log_bytes for part in table.snapshot().slices]
    bases = {made.base.path for made in table.state().slices.values() if made.base}
    watched = FaultyStore(open_store(table.uri))
    result = Table(replace(table.env, store=watched)).split(32)
    reads = Counter(path for call, path in watched.calls if call == "open_input")
    assert {reads[path] for path in bases} == {opened}
    assert result.bytes_read == opened * sum(before)
    assert (result.file_groups, result.rows) == (32, len(rows))
    assert contents(table) == rows
    assert table.verify().ok


@pytest.mark.parametrize(
    "buckets", [pytest.param(8, marks=pytest.mark.extended, id="split"), pytest.param(1, id="merge")]
)
@pytest.mark.slow
def test_a_split_that_dies_at_any_request_is_completed(tmp_path: Path, buckets: int) -> None:
    """By a compaction, or by another split; a writer goes on after each death, and reads are exact before and after."""
    first = Table.create(tmp_path / "first", {**SHOP, "buckets": 2})
    append(first, orders(*range(60)))
    first.compact()
    append(first, orders(*range(0, 60, 7), op="D", ts=2))
    append(first, payments(*range(40, 80)), "payments")
    first.fold()
    append(first, orders(*range(50, 70), status="late", ts=3))
    rows = contents(first)
    tuning = first.env.tuning

    def copy(name: str, store: FaultyStore | None = None) -> Table:
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(tmp_path / "first", folder)
        return Table(Environment(store or open_store(str(folder)), FakeClock(), tuning=tuning), Stamps())

    watched = FaultyStore(open_store(copy("watched").uri))
    small = {"small_group_bytes": 0, "compaction_part_bytes": 1}  # a BASE for each file group
    Table(copy("watched", watched).env.tuned(**small)).split(buckets)
    made = changes(watched)
    assert len(made) > 4
    for death in deaths(made):
        name = str(death)
        broken = death.happens_in(FaultyStore(open_store(copy(name).uri)))
        with pytest.raises(Died):
            Table(copy(name, broken).env.tuned(**small)).split(buckets)
        assert contents(copy(name)) == rows, death
        append(copy(name), orders(3, 99, status="after", ts=9))
        now = contents(copy(name))
        if death.number % 2:
            copy(name).compact()
        else:
            copy(name).split(buckets)
        assert contents(copy(name)) == now, death
        bits = {part.group.bits for part in copy(name).snapshot().slices}
        done = splitting.unsplit(copy(name).snapshot()) == []
        assert done, bits
        assert copy(name).verify().ok
        shutil.rmtree(tmp_path / name)


@pytest.mark.parametrize("buckets", [16, 1], ids=["split", "merge"])
def test_a_frozen_compaction_publishes_nothing_over_a_split(buckets: int) -> None:
    """What it has read is not there any more when it continues, though its successors may have the same cut."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    table.compact()
    append(table, orders(*range(50), status="two", ts=2))
    # It writes its files, and the split comes before its BASE: its PLAN is its first entry of the table lane.
    result = frozen(table, lambda: Table.open(table.uri).split(buckets)).compact()
    assert result.done == ()
    assert set(result.skipped.values()) == {"another compaction published a newer slice first"}
    assert statuses(table) == {**dict.fromkeys(range(50), "two"), **dict.fromkeys(range(50, 100), "new")}
    assert table.verify().ok


def frozen(table: Table, meanwhile: Callable[[], object]) -> Table:
    """The table of a process that freezes before its second entry of the table lane, while others do something."""
    broken = FaultyStore(open_store(table.uri))
    broken.faults.append(Fault("put_if_absent", "_weft/timeline/table/", action=lambda: None))
    broken.faults.append(Fault("put_if_absent", "_weft/timeline/table/", action=lambda: (meanwhile(), None)[1]))
    return Table(Environment(broken, table.env.clock, tuning=table.env.tuning), Stamps())


def test_a_frozen_fold_of_what_was_split_meanwhile_is_left_out() -> None:
    """Its file group never had a slice, so nothing but the bits of the new slices tells."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))

    def meanwhile() -> None:
        other = Table.open(table.uri)
        splitting.set_buckets(other.writable(), 16)
        other.compact(lambda part: part.group.bucket % 4 == 1)

    result = frozen(table, meanwhile).fold()
    assert {group.bucket for group in result.done} == {0, 2, 3}
    assert {group.bucket for group in result.skipped} == {1}
    assert len(contents(table)) == 100
    table.compact()
    assert len(contents(table)) == 100
    assert table.verify().ok


def test_a_part_of_a_fold_is_dropped_unless_all_parts_come() -> None:
    """The other keys of the fold would be in no file group that reads it."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))

    result = frozen(table, lambda: splitting.set_buckets(Table.open(table.uri).writable(), 16)).fold()
    assert len(result.done) == 4  # of the old number: nothing overlaps them yet
    assert {part.group.bits for part in table.snapshot().slices} == {2}
    state = table.state()
    parts = next(group for group in state.folds[0].groups if group.bucket == 1).parts(4)
    cut = dict(table.snapshot().cut.lanes)
    offered = [slice_of(part, cut) for part in parts]
    assert may_follow(state.slices, state.folded_groups, offered) == offered
    assert may_follow(state.slices, state.folded_groups, offered[:-1]) == []
    table.compact()
    assert {part.group.bits for part in table.snapshot().slices} == {4}
    assert len(contents(table)) == 100


def slice_of(group: FileGroup, cut: dict[LaneName, int], **values: Any) -> SliceFile:
    made: dict[str, Any] = {
        "base": None,
        "shadow": None,
        "groups": [1],
        "ordering_max": {},
        "overflows": {},
        "rev": 1,
    }
    where = {"partition": group.partition, "bits": group.bits, "bucket": group.bucket}
    return SliceFile(**where, **made, parent=values.pop("parent", {}), cut=cut, **values)


def test_slices_follow_exactly_those_that_they_replace() -> None:
    one, two = {LaneName("a"): 1}, {LaneName("a"): 2}
    whole = FileGroup("", 1, 1)
    slices = Slices.of([slice_of(FileGroup("", 1, 0), one), slice_of(whole, one)])
    replaced = {"replaces": [Replaced(bits=1, bucket=1, cut=one)]}
    parts = [slice_of(part, two, **replaced) for part in whole.parts(2)]
    assert may_follow(slices, GroupUnion(), parts) == parts
    assert may_follow(slices, GroupUnion(), parts[:1]) == []  # a part is left out
    assert may_follow(slices, GroupUnion(), [slice_of(part, two) for part in whole.parts(2)]) == []  # beside the whole
    older = {"replaces": [Replaced(bits=1, bucket=1, cut=two)]}
    assert may_follow(slices, GroupUnion(), [slice_of(part, two, **older) for part in whole.parts(2)]) == []
    assert may_follow(slices, GroupUnion(), [*parts, slice_of(whole, two, parent=one)]) == []  # both
    ordinary = slice_of(FileGroup("", 1, 0), two, parent=one)
    assert may_follow(slices, GroupUnion(), [ordinary, *parts[1:]]) == [ordinary]
    both = {"replaces": [Replaced(bits=1, bucket=bucket, cut=one) for bucket in (0, 1)]}
    merged = slice_of(FileGroup("", 0, 0), two, **both)
    assert may_follow(slices, GroupUnion(), [merged]) == [merged]
    one_of_them = {"replaces": both["replaces"][:1]}
    assert may_follow(slices, GroupUnion(), [slice_of(FileGroup("", 0, 0), two, **one_of_them)]) == []


def test_what_slices_cover_is_what_all_parts_have() -> None:
    one, two = {LaneName("a"): 1}, {LaneName("a"): 2}
    whole = FileGroup("", 1, 1)
    first, second = whole.parts(2)
    levels = {1, 2}
    assert reached({first: one, second: two}, levels, whole) == [one, two]
    assert reached({first: two}, levels, whole) == []  # keys in no slice
    assert reached({whole: one}, levels, first) == [one]
    assert reached({whole: one}, levels, FileGroup("", 1, 0)) == []


def test_file_groups_that_wait_are_not_covered_by_those_that_were_split() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    table.compact(lambda part: part.group.bucket == 0)
    splitting.set_buckets(table.writable(), 16)
    append(table, orders(*range(50, 150), status="two", ts=2))
    done = table.compact(lambda part: part.group.bucket % 4 == 0).done
    assert {(group.bits, group.bucket % 4) for group in done} == {(4, 0)}
    assert len(contents(table)) == 150
    table.compact()
    assert len(contents(table)) == 150
    assert table.snapshot().files == []


def test_verify_finds_no_loss_where_a_part_of_a_split_file_group_has_no_rows() -> None:
    """The fold has no file group for that part, and covers the commit all the same (G3, G4)."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 2})
    append(table, orders(1))
    table.split(4)
    table.fold()
    assert Table.open(table.uri).verify().errors == ()
    assert Table.open(table.uri).verify(deep=False).errors == ()


def test_verify_finds_no_loss_where_the_rows_of_an_old_writer_are_all_in_one_part() -> None:
    """Another part has a fold, too, that need not reach as far."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 2})
    append(table, orders(*range(20)))
    with table.writer("orders") as writer:
        begun = writer.begin()
        assert isinstance(begun, WriteTicket)
        written = write_rows(begun, orders(1))
        table.split(8)
        table.compact()
        writer.commit(begun, [written])
    table.fold()
    assert Table.open(table.uri).verify().errors == ()


def test_verify_finds_lost_rows_of_a_file_group_that_was_split() -> None:
    """Some parts contain the commit and others do not: its rows decide. The advice does not make it worse."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 2})
    append(table, orders(*range(20)))
    splitting.set_buckets(table.writable(), 8)
    table.fold()
    damage = Damage(table)
    damage.edit(damage.slot("", "FOLD"), lambda entry: entry["file_groups"].pop())
    (lost,) = Table.open(table.uri).verify().errors
    assert (lost.invariant, "restore" in lost.hint, "do not clean" in lost.hint) == ("S8", False, True)


def test_two_splits_at_once_end_with_the_last_number() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    table.compact()
    broken = FaultyStore(open_store(table.uri))
    slow = Table(Environment(broken, table.env.clock, tuning=table.env.tuning), Stamps())
    broken.faults.append(Fault("put_if_absent", "_weft/timeline/table/", times=2, action=lambda: None))
    broken.faults.append(
        Fault("put_if_absent", "_weft/timeline/table/", action=lambda: (Table.open(table.uri).split(8), None)[1])
    )
    with pytest.raises(Exception, match="was split to 8 buckets meanwhile"):
        slow.split(16)
    assert {part.group.bits for part in table.snapshot().slices} == {3}
    assert len(contents(table)) == 100


@pytest.mark.parametrize(
    ("buckets", "message", "hint"),
    [
        (0, "buckets: 0 is out of range", "give a power of two from 1 to 65536"),
        (-8, "buckets: -8 is out of range", "give a power of two from 1 to 65536"),
        (12, "buckets: 12 is not a power of two", "give 8 or 16"),
        (65_535, "buckets: 65535 is not a power of two", "give 32768 or 65536"),
        (1 << 17, "buckets: 131072 is out of range", "65536"),
        (True, "buckets: True is not a number", "give a number such as 16"),
        ("8", "buckets: '8' is not a number", "give a number such as 16"),
    ],
)
def test_bad_numbers_change_nothing(buckets: Any, message: str, hint: str) -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1))
    before = table.state()
    with pytest.raises(InvalidInput) as refused:
        table.split(buckets)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")
    assert table.state() == before


def test_older_versions_refuse_a_table_whose_buckets_were_changed() -> None:
    table = Table.create(new_uri(), SHOP)
    assert table.state().writer_features == WRITER_FEATURES
    table.split(8)
    assert BUCKETS in table.state().writer_features
    table.split(4)
    assert (table.schema.bucket_bits, table.schema.created_bits) == (2, 2)
    table.add_column("order", "note", "string")
    assert BUCKETS in table.state().writer_features
    assert table.schema.created_bits == 2


def test_what_is_left_is_due_and_shown() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    table.compact()
    splitting.set_buckets(table.writable(), 8)
    measures = measure(table.snapshot())
    assert (measures.buckets, measures.unsplit_groups, measures.proposed_buckets) == (8, 4, 8)
    due = find_due(table.snapshot(), DuePolicy())
    assert {found.reason for found in due.values()} == {"buckets"}
    assert len(due) == 4
    assert Inspection(table.uri).overview().unsplit_groups == 4
    table.compact(policy=DuePolicy())
    assert measure(table.snapshot()).unsplit_groups == 0
    assert find_due(table.snapshot(), DuePolicy()) == {}


def test_a_split_is_proposed_for_file_groups_that_are_too_large() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(100)))
    (part, *rest) = table.snapshot().slices
    assert propose_buckets([part, *rest], 2) == 4
    assert propose_buckets([replace(part, log_bytes=4 * SPLIT_BYTES + 1)], 2) == 8
    assert propose_buckets([replace(part, log_bytes=40 * SPLIT_BYTES)], 2) == 64
    assert propose_buckets([], 2) == 4
