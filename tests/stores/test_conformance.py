"""The operations that the protocol needs, tested on every kind of store (PROTOCOL.md, "Store operations")."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from tests.stores.places import BLOCK_BYTES, JOIN_SECONDS, SPAWN, Place, race, winners
from weft.storage.core.names import Path, encode_partition
from weft.storage.environment import RandomIds
from weft.storage.errors import CorruptData, InvalidInput
from weft.storage.store.object_store import MAX_CREATE_BYTES, ObjectStore, ReadRequest, check_capability
from weft.storage.store.open_store import list_folders

NAME = Path("folder/deeper/object.json")
LARGE = 2 * BLOCK_BYTES + 12_345
MANY = 1_001  # one more than S3 lists or deletes at once
PARTITIONS = {
    "plain": encode_partition("day", "2026-01-01"),
    "null": encode_partition("day", None),
    "empty": encode_partition("day", ""),
    "percent": encode_partition("a b/c", "100% ä=?&#+'\"\\:*"),
    "dots": encode_partition("x", ".."),
    "long": encode_partition("x", "é" * 100),
}


def test_the_first_create_wins_and_the_second_changes_nothing(store: ObjectStore) -> None:
    assert store.put_if_absent(NAME, b"first")
    assert not store.put_if_absent(NAME, b"second")
    assert not store.put_if_absent(NAME, b"first"), "not even with the same bytes"
    assert store.get(NAME) == b"first"


def test_a_deletion_is_visible_at_once_and_frees_the_name(store: ObjectStore) -> None:
    assert store.put_if_absent(NAME, b"entry")
    store.delete_many([NAME])
    assert (store.get(NAME), store.get_many([NAME, Path("other")])) == (None, [None, None])
    assert store.put_if_absent(NAME, b"ghost"), (
        "so a frozen writer's put may succeed, and the writer has to look for an archive"
    )
    assert not store.put_if_absent(NAME, b"another")
    assert store.get(NAME) == b"ghost"


def test_folders_are_those_of_the_location_itself(place: Place) -> None:
    store = place.open()
    assert not list_folders(f"{place.uri}/nothing", place.options)
    for name in ("object", "a b/deeper/object", "a b/object", "other/object", "z\u00e4/object"):
        assert store.put_if_absent(Path(name), b"")
    assert list_folders(place.uri, place.options) == ["a b", "other", "z\u00e4"]
    assert list_folders(f"{place.uri}/a b", place.options) == ["deeper"]
    assert list_folders(f"{place.uri}/other", place.options) == []
    assert store.put_if_absent(Path("new/object"), b"")
    assert "new" in (list_folders(place.uri, place.options) or ()), "no listing is remembered"


@pytest.mark.slow
def test_processes_that_race_for_a_name_have_one_winner_whose_bytes_all_read(place: Place) -> None:
    if place.uri.startswith("memory:"):
        pytest.skip("memory is not shared between processes; threads race below")
    assert winners(race(place)) == [1] * place.rounds


def test_threads_that_race_for_a_name_have_one_winner(store: ObjectStore) -> None:
    threads = 8
    gate = threading.Barrier(threads)

    def create(number: int) -> bool:
        gate.wait(JOIN_SECONDS)
        return store.put_if_absent(NAME, b"%d" % number)

    with ThreadPoolExecutor(threads) as pool:
        won = list(pool.map(create, range(threads)))
    assert won.count(True) == 1
    assert store.get(NAME) == b"%d" % won.index(True)


def test_objects_too_large_for_one_request_are_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="can be created at once") as error:
        store.put_if_absent(NAME, bytes(MAX_CREATE_BYTES + 1))
    assert error.value.hint
    assert store.get(NAME) is None


def test_a_missing_object_is_none_and_not_an_error(store: ObjectStore) -> None:
    assert store.get(NAME) is None
    assert store.get_many([NAME, Path("other")]) == [None, None]
    assert store.list(Path("folder")) == []
    store.delete(NAME)
    store.delete_many([NAME, Path("other")])


def test_reads_see_writes_immediately(store: ObjectStore) -> None:
    for number in range(20):
        path = Path(f"{NAME}-{number}")
        assert store.get(path) is None
        store.put(path, b"%d" % number)
        assert store.get(path) == b"%d" % number
        assert len(store.list(Path("folder"))) == 1
        store.delete(path)
        assert store.get(path) is None


def test_an_object_can_be_replaced_and_stays_taken(store: ObjectStore) -> None:
    assert store.put_if_absent(NAME, b"with keys")
    store.put(NAME, b"redacted")
    assert store.get(NAME) == b"redacted"
    assert not store.put_if_absent(NAME, b"another")


def test_many_objects_are_returned_in_the_requested_order(store: ObjectStore) -> None:
    paths = [Path(f"many/{number}") for number in range(50)]
    for path in paths[::2]:
        store.put(path, path.encode())
    expected = [path.encode() if number % 2 == 0 else None for number, path in enumerate(paths)]
    assert store.get_many(paths) == expected
    assert store.get_many(paths[::-1]) == expected[::-1]
    assert store.get_many([paths[0], paths[0]]) == [expected[0]] * 2
    assert store.get_many([]) == []


@pytest.mark.parametrize("size", [0, 1, LARGE], ids=["empty", "a byte", "large"])
def test_objects_of_any_size_round_trip(store: ObjectStore, size: int) -> None:
    data = os.urandom(size)
    store.put(Path("put"), pa.py_buffer(data))
    assert store.put_if_absent(Path("created"), data)
    with store.open_output(Path("pieces")) as file:
        for start in range(0, size, 1_000_003):
            file.write(data[start : start + 1_000_003])
    for path in (Path("put"), Path("created"), Path("pieces")):
        assert store.get(path) == data
        with store.open_input(path, size) as source:
            assert source.read() == data


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_an_object_written_in_parts_exists_only_when_complete(store: ObjectStore, size: int) -> None:
    with store.open_output(NAME) as file:
        file.write(bytes(size))
        assert store.get(NAME) is None
        assert store.list(Path("folder")) == []
        file.write(b"end")
    assert store.list(Path("folder")) == [("deeper/object.json", size + 3)]


def fail_after_writing(file: BinaryIO, size: int, error: type[BaseException]) -> None:
    file.write(bytes(size))
    raise error


@pytest.mark.parametrize("size", [0, 10, LARGE], ids=["nothing", "small", "large"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_object_whose_write_failed_does_not_exist(store: ObjectStore, size: int, error: type[BaseException]) -> None:
    with pytest.raises(error), store.open_output(NAME) as file:
        fail_after_writing(file, size, error)
    assert store.get(NAME) is None
    assert store.list(Path("folder")) == []
    assert store.leftovers() == []


def test_values_that_are_not_bytes_are_not_written(store: ObjectStore) -> None:
    with pytest.raises(TypeError), store.open_output(NAME) as file:
        file.writelines([b"half", "not bytes"])
    assert store.get(NAME) is None


def test_ranges_are_read_back_as_written(store: ObjectStore) -> None:
    data = os.urandom(300_000)
    store.put(NAME, data)
    ranges = [(0, 10), (10, 5), (100_000, 50_000), (299_990, 10)]
    with store.open_input(NAME, len(data), ranges) as source:
        for offset, length in [*reversed(ranges), (200_000, 77), (299_000, 1_000)]:
            source.seek(offset)
            assert source.read(length) == data[offset : offset + length]
    with store.open_input(NAME, len(data)) as source:
        assert source.read() == data
        assert source.read_at(7, 99_999) == data[99_999:100_006]


def test_ranges_of_many_objects_are_read_at_once(store: ObjectStore) -> None:
    contents = {Path(f"folder/{number}"): os.urandom(100_000 + number) for number in range(40)}
    for path, data in contents.items():
        store.put(path, data)
    ranges = [(0, 5), (7, 90_000), (99_990, 10)]
    wanted = [ReadRequest(path, len(data), ranges, lead) for lead, (path, data) in enumerate(contents.items())]
    # The same object again, and no ranges of another one.
    wanted.append(ReadRequest(Path("folder/0"), 100_000, [(99_999, 1)]))
    wanted.append(ReadRequest(Path("folder/1"), 100_001, []))
    found = store.read_ranges(wanted)
    for asked, parts in zip(wanted, found, strict=True):
        assert all(part.is_mutable for part in parts)
        expected = [contents[asked.path][offset : offset + length] for offset, length in asked.ranges]
        assert [part.to_pybytes()[asked.lead :] for part in parts] == expected
    assert store.read_ranges([]) == []


def test_the_wrong_one_of_many_objects_is_named(store: ObjectStore) -> None:
    store.put(Path("there"), bytes(10))
    store.put(Path("short"), bytes(9))
    there = ReadRequest(Path("there"), 10, [(0, 10)])
    for ranges in ([(0, 10)], [(9, 1)], [(0, 2), (8, 2)]):
        with pytest.raises(CorruptData, match="lost is missing"):
            store.read_ranges([there, ReadRequest(Path("lost"), 10, ranges)])
        with pytest.raises(CorruptData, match="short has 9 bytes, but the log says 10"):
            store.read_ranges([ReadRequest(Path("short"), 10, ranges), there])


@pytest.mark.parametrize("ranges", [[(0, 10)], [(0, 4), (6, 4)], None])
def test_a_missing_object_is_corrupt_data_when_the_log_refers_to_it(store: ObjectStore, ranges: Any) -> None:
    with pytest.raises(CorruptData, match=r"object\.json is missing"), store.open_input(NAME, 10, ranges) as file:
        file.read(10)


@pytest.mark.parametrize("found", [0, 5, 9])
@pytest.mark.parametrize("ranges", [[(0, 10)], [(9, 1)], None], ids=["all", "the end", "not told"])
def test_a_truncated_object_is_corrupt_data(store: ObjectStore, found: int, ranges: Any) -> None:
    store.put(NAME, bytes(found))
    wrong = pytest.raises(CorruptData, match=rf"has {found} bytes, but the log says 10")
    with wrong, store.open_input(NAME, 10, ranges) as source:
        source.seek(9)
        source.read(1)


def test_objects_are_listed_below_their_folder_with_their_size(store: ObjectStore) -> None:
    store.put(NAME, b"12345")
    store.put(Path("folder/other"), pa.py_buffer(b"123"))
    store.put(Path("folder/empty"), b"")
    store.put(Path("folder-like"), b"1")
    store.put(Path("elsewhere"), b"1")
    assert store.list(Path("folder")) == [("deeper/object.json", 5), ("empty", 0), ("other", 3)]
    assert store.list(Path("folder/deeper")) == [("object.json", 5)]
    assert store.list(Path("fold")) == []
    store.delete(NAME)
    assert store.list(Path("folder")) == [("empty", 0), ("other", 3)]
    assert store.list(Path("folder/deeper")) == []
    assert store.get(NAME) is None


def test_more_objects_than_one_page_are_listed_and_deleted(store: ObjectStore) -> None:
    names = [f"{number % 7}/{number:05d}" for number in range(MANY)]
    paths = [Path(f"many/{name}") for name in names]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: store.put(path, b"x"), paths))
    store.put(Path("many-others/kept"), b"x")
    assert store.list(Path("many")) == sorted((name, 1) for name in names)
    store.delete_many([*paths[1:], Path("many/never/there")])
    assert store.list(Path("many")) == [(names[0], 1)]
    store.delete_many(paths)
    store.delete_many([])
    assert store.list(Path("many")) == []
    assert store.get(Path("many-others/kept")) == b"x"


@pytest.mark.parametrize("folder", PARTITIONS.values(), ids=PARTITIONS)
def test_partition_folders_are_valid_names(store: ObjectStore, folder: str) -> None:
    path = Path(f"base/{folder}/b04-00001/{'0' * 20}-x.parquet")
    assert store.put_if_absent(path, b"created")
    assert not store.put_if_absent(path, b"again")
    assert store.get(path) == b"created"
    assert store.get_many([path]) == [b"created"]
    with store.open_input(path, 7, [(2, 3)]) as source:
        source.seek(2)
        assert source.read(3) == b"eat"
    assert store.list(Path("base")) == [(path.removeprefix("base/"), 7)]
    assert store.list(Path(f"base/{folder}")) == [(path.removeprefix(f"base/{folder}/"), 7)]
    store.delete_many([path])
    assert store.list(Path("base")) == []
    with store.open_output(path) as file:
        file.write(b"pieces")
    assert store.get(path) == b"pieces"
    store.delete(path)
    assert store.get(path) is None


def test_the_longest_names_of_the_format_are_valid(store: ObjectStore) -> None:
    path = Path(f"{'f' * 200}/{'n' * 200}")
    assert store.put_if_absent(path, b"x")
    assert store.list(Path("f" * 200)) == [("n" * 200, 1)]


def read_in_another_process(store: ObjectStore, results: Any) -> None:
    try:
        results.put((store.uri, store.get(NAME), store.put_if_absent(Path("theirs"), b"x")))
    except Exception as error:
        results.put(repr(error))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_store_can_be_pickled(store: ObjectStore, method: str) -> None:
    if store.uri.startswith("memory:"):
        copy = pickle.loads(pickle.dumps(store))
        store.put(NAME, b"mine")
        assert copy.get(NAME) == b"mine"
        return
    store.put(NAME, b"mine")
    context = SPAWN if method == "spawn" else multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=read_in_another_process, args=(store, results))
    process.start()
    try:
        assert results.get(timeout=JOIN_SECONDS) == (store.uri, b"mine", True)
    finally:
        process.join(JOIN_SECONDS)
        process.kill()
    assert store.get(Path("theirs")) == b"x", "and the remaining one still works"


def test_two_instances_see_the_same_objects(place: Place) -> None:
    one, other = place.open(), place.open()
    assert one.list(Path("folder")) == other.list(Path("folder")) == []
    one.put(NAME, b"x")
    assert other.list(Path("folder")) == one.list(Path("folder")) == [("deeper/object.json", 1)]
    other.delete(NAME)
    assert one.get(NAME) is None
    assert one.list(Path("folder")) == []


def test_a_capable_store_passes_and_keeps_no_probe_object(store: ObjectStore) -> None:
    check_capability(store, RandomIds().new)
    assert store.list(Path("_weft")) == []
