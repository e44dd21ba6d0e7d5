"""Answers of S3 and their handling: conflicts, lost answers, refusals, multipart uploads, and numbers of requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path as LocalPath
from typing import Any, BinaryIO

import pytest
import s3fs

from tests.faulty_store import FOREVER, FakeClock
from tests.storage.support.shop import SHOP, orders, statuses
from tests.stores.moto_server import (
    BUCKET,
    Fault,
    Faulty,
    ignoring_conditions,
    looking_first,
    moto_server,
    one_step,
)
from tests.stores.places import BLOCK_BYTES, RACERS, Backend, Place, race, winners
from weft import Table
from weft.storage.clock import Clock
from weft.storage.core.log.entries import Claim
from weft.storage.core.log.entry_codec import decode_entry
from weft.storage.core.names import TABLE_LANE, LaneName, Path, slot_path
from weft.storage.environment import Environment, RandomIds
from weft.storage.errors import CommitUnknown, CorruptData, InvalidInput, StoreRefused, StoreUnavailable
from weft.storage.log.commit_log import CommitLog
from weft.storage.store.object_store import MAX_CREATE_BYTES, ObjectStore, check_capability
from weft.storage.store.open_store import check_reachable, open_store
from weft.storage.store.remote_store import RemoteStore

pytestmark = pytest.mark.slow

NAME = Path("folder/object")
LANE = LaneName("orders")
SLOT = slot_path(LANE, 1)
CONFLICT = ("409 Conflict", "ConditionalRequestConflict")
FAILED = ("412 Precondition Failed", "PreconditionFailed")
FORBIDDEN = ("403 Forbidden", "AccessDenied")
BROKEN = ("500 Internal Server Error", "InternalError")
BUSY = ("503 Slow Down", "SlowDown")
NO_ANSWER = ("", "")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Backend, Faulty]]:
    faulty = Faulty()
    with moto_server(lambda app: faulty(one_step(app))) as backend:
        yield backend, faulty


@pytest.fixture
def faulty(server: tuple[Backend, Faulty]) -> Faulty:
    server[1].faults.clear()
    server[1].requests.clear()
    return server[1]


@pytest.fixture
def place(server: tuple[Backend, Faulty]) -> Place:
    return server[0].new_place()


@pytest.fixture
def store(place: Place) -> ObjectStore:
    return place.open()


@pytest.fixture
def in_table(store: ObjectStore) -> None:
    """The first entry of a table, without which nothing is published (W8); its content does not matter here."""
    store.put(slot_path(TABLE_LANE, 1), b"{}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def claim(commit_id: str) -> Claim:
    header = {"lane": LANE, "seq": 1, "epoch": 1, "prev_id": "", "table_rev": 0, "stamp": 1, "committed_at_ms": 1}
    return Claim(**header, commit_id=commit_id, owner="test", intent=0)


def publish(store: ObjectStore, clock: Clock, commit_id: str) -> str:
    return CommitLog(Environment(store, clock)).publish(claim(commit_id)).commit_id


def stored(store: ObjectStore) -> str | None:
    data = store.get(SLOT)
    return None if data is None else decode_entry(data, LANE, 1).commit_id


def requests(faulty: Faulty, path: Path) -> list[tuple[str, str, str]]:
    return [(r.method, r.query, r.condition) for r in faulty.requests if r.path.endswith(path)]


@pytest.mark.parametrize("size", [1, MAX_CREATE_BYTES], ids=["small", "the largest"])
def test_a_create_is_one_conditional_put(store: ObjectStore, faulty: Faulty, size: int) -> None:
    assert store.put_if_absent(NAME, bytes(size))
    assert requests(faulty, NAME) == [("PUT", "", "*")]


def test_a_small_object_is_read_in_one_request_even_if_it_is_missing(store: ObjectStore, faulty: Faulty) -> None:
    store.put(NAME, b"x")
    faulty.requests.clear()
    assert store.get(NAME) == b"x"
    assert store.get(Path("folder/other")) is None
    assert store.get_many([NAME, Path("folder/another")]) == [b"x", None]
    assert sorted((r.method, r.path.rpartition("/")[2]) for r in faulty.requests) == [
        ("GET", "another"),
        ("GET", "object"),
        ("GET", "object"),
        ("GET", "other"),
    ]


def test_close_ranges_are_read_in_one_request(store: ObjectStore, faulty: Faulty) -> None:
    store.put(NAME, bytes(400_000))
    faulty.requests.clear()
    with store.open_input(NAME, 400_000, [(0, 10), (1_000, 10), (66_000, 10), (300_000, 10)]) as source:
        for offset in (0, 1_000, 66_000, 300_000):
            source.seek(offset)
            source.read(10)
    assert len(requests(faulty, NAME)) == 2
    with store.open_input(NAME, 400_000, [(0, 10)]) as source:
        source.seek(5)
        source.read(10)
    assert len(requests(faulty, NAME)) == 4, "a range that was not announced costs a request, and its bytes are right"


@pytest.mark.parametrize("extra", ["<Condition>If-None-Match</Condition>", ""], ids=["says why", "says nothing"])
def test_412_means_that_the_object_exists(store: ObjectStore, faulty: Faulty, extra: str) -> None:
    faulty.faults.append(Fault(NAME, *FAILED, extra=extra))
    assert not store.put_if_absent(NAME, b"x")


@pytest.mark.parametrize("answer", [CONFLICT, BROKEN, BUSY, NO_ANSWER], ids=["409", "500", "503", "none"])
def test_an_undecided_answer_is_an_error(store: ObjectStore, faulty: Faulty, answer: tuple[str, str]) -> None:
    faulty.faults.append(Fault(NAME, *answer, times=FOREVER))
    with pytest.raises(OSError) as error:
        store.put_if_absent(NAME, b"x")
    assert not isinstance(error.value, FileExistsError | PermissionError | FileNotFoundError)
    assert store.get(NAME) is None


@pytest.mark.parametrize("answer", [BROKEN, BUSY, NO_ANSWER], ids=["500", "503", "none"])
@pytest.mark.usefixtures("in_table")
def test_publish_wins_if_the_sdk_repeats_a_successful_put(
    store: ObjectStore, faulty: Faulty, clock: FakeClock, answer: tuple[str, str]
) -> None:
    """The SDK retries the put and gets 412, because its first try has created the object."""
    faulty.faults.append(Fault(SLOT, *answer, done=True))
    assert publish(store, clock, "mine") == "mine"
    puts = [request for request in requests(faulty, SLOT) if request[0] == "PUT"]
    assert len(puts) == 2, "the put was retried after it had succeeded"
    assert clock.slept == [], "the first read-back gave the result"
    assert stored(store) == "mine"


@pytest.mark.usefixtures("in_table")
def test_a_conflict_is_retried_and_won(store: ObjectStore, faulty: Faulty, clock: FakeClock) -> None:
    faulty.faults.append(Fault(SLOT, *CONFLICT, times=2))
    assert publish(store, clock, "mine") == "mine"
    assert len(clock.slept) == 2


@pytest.mark.usefixtures("in_table")
def test_a_conflict_whose_put_succeeded_is_won(store: ObjectStore, faulty: Faulty, clock: FakeClock) -> None:
    faulty.faults.append(Fault(SLOT, *CONFLICT, done=True))
    assert publish(store, clock, "mine") == "mine"
    assert [request[0] for request in requests(faulty, SLOT)] == ["PUT", "GET"]


@pytest.mark.usefixtures("in_table")
def test_a_conflict_won_by_another_process_is_lost(store: ObjectStore, faulty: Faulty, clock: FakeClock) -> None:
    publish(store, clock, "theirs")
    faulty.faults.append(Fault(SLOT, *CONFLICT))
    assert publish(store, clock, "mine") == "theirs"
    assert stored(store) == "theirs"


def test_a_store_that_never_decides_ends_in_unknown(store: ObjectStore, faulty: Faulty, clock: FakeClock) -> None:
    faulty.faults.append(Fault(SLOT, *CONFLICT, times=FOREVER))
    with pytest.raises(CommitUnknown, match="made up"):
        publish(store, clock, "mine")


def test_refused_access_never_means_absence(store: ObjectStore, faulty: Faulty, clock: FakeClock) -> None:
    store.put(NAME, b"0123456789")
    for method in ("GET", "HEAD", "PUT", "DELETE", "POST"):
        faulty.faults.append(Fault("", *FORBIDDEN, method=method, times=FOREVER))
    for call in (
        lambda: store.get(NAME),
        lambda: store.get_many([NAME]),
        lambda: store.put_if_absent(NAME, b""),
        lambda: store.delete(NAME),
    ):
        with pytest.raises(PermissionError):
            call()
    unreadable = pytest.raises(StoreUnavailable, match="no access")
    with unreadable as error, store.open_input(NAME, 10) as source:
        source.read(10)
    assert "credentials" in error.value.hint
    for refused in (
        lambda: store.list(Path("folder")),
        lambda: store.put(NAME, b"x"),
        lambda: store.delete_many([NAME]),
        lambda: publish(store, clock, "mine"),
        lambda: check_capability(store, RandomIds().new),
        lambda: Table.create(store.uri, SHOP, storage_options=store._options),
    ):
        with pytest.raises(StoreUnavailable) as error:
            refused()
        assert "credentials" in error.value.hint
    assert clock.slept == []


def test_a_read_without_an_answer_is_not_damage(place: Place, faulty: Faulty) -> None:
    table = Table.create(place.uri, SHOP, storage_options=place.options)
    with table.writer("orders") as writer:
        writer.append(orders(1, 2))
    for suffix in (".arrow", ".parquet"):
        faulty.faults.append(Fault(suffix, *CONFLICT, method="GET", times=FOREVER))
        with pytest.raises(StoreUnavailable, match="made up") as error:
            table.snapshot().to_arrow()
        assert "try again" in error.value.hint
        faulty.faults.clear()
        table.compact()
    assert statuses(table) == {1: "new", 2: "new"}


def uploads(place: Place) -> int:
    """The number of multipart uploads in progress below a place; other tests of this process use the same bucket."""
    answer = s3fs.S3FileSystem(**place.options).call_s3("list_multipart_uploads", Bucket=BUCKET)
    prefix = place.uri.removeprefix(f"s3://{BUCKET}/")
    return sum(upload["Key"].startswith(f"{prefix}/") for upload in answer.get("Uploads", []))


@pytest.mark.usefixtures("faulty")
def test_a_multipart_upload_is_aborted_if_writing_fails(store: ObjectStore, place: Place) -> None:
    seen = []

    def fail(file: BinaryIO) -> None:
        file.write(bytes(2 * BLOCK_BYTES))
        seen.append(uploads(place))
        raise RuntimeError

    with pytest.raises(RuntimeError), store.open_output(NAME) as file:
        fail(file)
    assert seen == [1], "an upload was aborted"
    assert uploads(place) == 0


@pytest.mark.parametrize("size", [10, 2 * BLOCK_BYTES], ids=["in one", "in parts"])
def test_an_upload_that_is_not_accepted_leaves_nothing(
    store: ObjectStore, place: Place, faulty: Faulty, size: int
) -> None:
    for method in ("PUT", "POST"):
        faulty.faults.append(Fault(NAME, *FORBIDDEN, method=method, times=FOREVER))
    with pytest.raises(StoreUnavailable, match="no access to folder/object"), store.open_output(NAME) as file:
        file.write(bytes(size))
    faulty.faults.clear()
    assert store.get(NAME) is None
    assert uploads(place) == 0


def test_a_refused_deletion_of_one_object_is_an_error(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"Errors": [{"Key": "folder/object", "Code": "AccessDenied", "Message": "locked"}]}
    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", lambda *_, **__: refused)
    with pytest.raises(StoreUnavailable, match="1 of 2 objects were not deleted; folder/object: AccessDenied locked"):
        store.delete_many([NAME, Path("other")])


def test_placeholders_of_folders_are_not_objects(store: ObjectStore, place: Place) -> None:
    fs = s3fs.S3FileSystem(**place.options)
    prefix = place.uri.removeprefix(f"s3://{BUCKET}/")
    for key in ("folder/", "folder/inner/"):
        fs.call_s3("put_object", Bucket=BUCKET, Key=f"{prefix}/{key}")
    store.put(Path("folder/inner/object"), b"x")
    assert store.list(Path("folder")) == [("inner/object", 1)]


def test_a_store_that_ignores_the_condition_is_refused_and_nothing_is_changed(place: Place, store: ObjectStore) -> None:
    table = Table.create(place.uri, SHOP, storage_options=place.options)
    with table.writer("orders") as writer:
        writer.append(orders(1))
    before = {path: store.get(Path(path)) for path, _ in store.list(Path("_weft")) + store.list(Path("log"))}
    with moto_server(ignoring_conditions) as careless:
        other = careless.new_place()
        refused = pytest.raises(StoreUnavailable, match="a second create of one name was not refused")
        with refused as error:
            Table.create(other.uri, SHOP, storage_options=other.options)
        assert "conditional writes" in error.value.hint
        assert s3fs.S3FileSystem(**other.options).find(other.uri) == []
        same = Table.open(place.uri, storage_options=careless.options)
        for stream in ("orders", "payments"):
            with refused, same.writer(stream):
                pytest.fail("a writer of a store that overwrites")
        assert statuses(same) == {1: "new"}, "reading is allowed"
    assert {path: store.get(Path(path)) for path in before} == before
    assert len(store.list(Path("_weft")) + store.list(Path("log"))) == len(before)


@pytest.mark.extended
def test_the_race_test_finds_a_store_that_checks_and_then_writes() -> None:
    """A test of the race test: on such a store all racers win, and the probe alone could not detect it."""
    with moto_server(looking_first(RACERS)) as backend:
        place = backend.new_place()
        assert winners(race(Place(place.uri, place.options, rounds=2))) == [RACERS, RACERS]


def test_a_missing_bucket_is_named(place: Place) -> None:
    with pytest.raises(StoreUnavailable, match="cannot write to s3://nowhere-to-be-found/t"):
        Table.create("s3://nowhere-to-be-found/t", SHOP, storage_options=place.options)


def test_missing_credentials_are_an_error_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    store = open_store(place.uri, {"endpoint_url": place.options["endpoint_url"], "skip_instance_cache": True})
    with pytest.raises(PermissionError, match="credentials"):
        store.put_if_absent(NAME, b"x")


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """The URL of a server that accepts connections and never answers, and its connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in taken:
            connection.close()


QUICK: dict[str, Any] = {"connect_timeout": 60, "read_timeout": 1}


def test_a_silent_server_is_tried_twice_and_not_for_minutes(
    silent: tuple[str, list[socket.socket]],
) -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": silent[0], "config_kwargs": QUICK}
    with pytest.raises(StoreUnavailable, match=r"no access to s3://b/t: .*timeout") as caught:
        check_reachable("s3://b/t", options, within_seconds=240)
    assert not isinstance(caught.value, StoreRefused)
    assert "endpoint_url" in caught.value.hint
    assert len(silent[1]) == 2, "s3fs and its SDK try 25 times"


def test_the_check_has_a_time_limit_with_any_options(silent: tuple[str, list[socket.socket]]) -> None:
    patient = {"read_timeout": 600}
    options = {"key": "k", "secret": "s", "endpoint_url": silent[0], "config_kwargs": patient}
    with pytest.raises(StoreUnavailable, match="no answer within 1 s"):
        check_reachable("s3://b/t", options, within_seconds=1)


def test_a_host_that_does_not_exist_is_named() -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": "http://no-such-host.invalid:9000", "config_kwargs": QUICK}
    with pytest.raises(StoreUnavailable, match=r"Could not connect to the endpoint URL: .http://no-such-host\.invalid"):
        check_reachable("s3://b/t", options, within_seconds=240)


def test_a_server_that_answers_is_reachable_and_a_refusal_is_an_error(place: Place, faulty: Faulty) -> None:
    check_reachable(place.uri, place.options)
    assert [request.method for request in faulty.requests] == ["GET"], "one request"
    faulty.faults.append(Fault("is-anybody-there", *FORBIDDEN, method="GET"))
    with pytest.raises(StoreRefused, match="no access to"):
        check_reachable(place.uri, place.options)
    check_reachable(str(place.uri).replace("s3://weft", "s3://no-such-bucket"), place.options)


def test_without_credentials_it_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(StoreRefused, match=r"no access to s3://b/t: .*Unable to locate credentials") as caught:
        check_reachable("s3://b/t", {"endpoint_url": place.options["endpoint_url"]})
    assert "check the credentials" in caught.value.hint


def test_local_folders_are_always_reachable(tmp_path: LocalPath) -> None:
    check_reachable(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("uri", ["sftp://host/table", "hdfs://host/table", "simplecache::s3://bucket/t", "http://h/t"])
def test_a_file_system_that_cannot_create_exclusively_is_refused_by_its_name(uri: str) -> None:
    with pytest.raises(InvalidInput, match="not a kind of store that creates objects exclusively") as error:
        open_store(uri)
    assert "s3://" in error.value.hint


@pytest.mark.parametrize("options", [{"endpoint_url": 7, "nonsense": object}, {"anon": "maybe", "client_kwargs": 5}])
def test_wrong_options_are_refused_or_named_by_the_first_request(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidInput, StoreUnavailable)) as error:
        check_capability(RemoteStore("s3://bucket/table", options), RandomIds().new)
    assert error.value.hint


def test_a_range_beyond_the_end_is_damage(store: ObjectStore) -> None:
    store.put(NAME, b"short")
    with pytest.raises(CorruptData, match="has 5 bytes, but the log says 100"), store.open_input(NAME, 100) as source:
        source.read_at(10, 50)
