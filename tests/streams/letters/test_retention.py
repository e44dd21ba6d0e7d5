"""Old dead letters are deleted; nothing younger, nothing that is still needed, and nothing else."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path

import pytest
import yaml

from tests.streams.letters.rig import CONFIG, Killed, Moments, Place, bad, good
from tests.streams.support.pipelines import weft, weft_output
from weft.streams.letters.letter_folder import State
from weft.streams.letters.retention import Expired, Retention
from weft.streams.pipeline.file.model import CleanSection
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.service_rounds import clean_round

DAY = 86_400
NOW_MS = time.time_ns() // 1_000_000
LATER_MS = NOW_MS + 31 * DAY * 1000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.new(tmp_path / "place")
    place.write(good(1), bad(2))
    place.write(bad(3))
    return place


def age(place: Place, file: str, days: float) -> None:
    """Let the letters of a file look older."""
    path = Path(place.letters_uri, file)
    letters = [json.loads(line) for line in path.read_text().splitlines()]
    older = [{**letter, "written_at_ms": NOW_MS - round(days * DAY * 1000)} for letter in letters]
    path.write_text("".join(json.dumps(letter) + "\n" for letter in older))


def files(place: Place) -> set[str]:
    root = Path(place.letters_uri)
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_only_files_whose_letters_are_all_old_are_deleted(place: Place) -> None:
    retention = Retention(place.letters(), 30 * DAY)
    assert retention.expire() == Expired()
    assert place.waiting() == [2, 3]
    age(place, "q/0-1.jsonl", 31)
    age(place, "q/1-0.jsonl", 29)
    old = Path(place.letters_uri, "q/0-1.jsonl").stat().st_size
    retention = Retention(place.letters(), 30 * DAY)
    assert retention.expire(dry_run=True) == Expired(1, old)
    assert place.waiting() == [2, 3]
    assert retention.expire() == Expired(1, old)
    assert place.waiting() == [3]
    assert retention.expire(LATER_MS).files == 1
    assert files(place) == set()


def test_other_files_are_never_deleted(place: Place) -> None:
    root = Path(place.letters_uri)
    text = (root / "q/1-0.jsonl").read_text()
    others = {
        "notes.jsonl": text,
        "q/1-0.jsonl.bak": text,
        "q/deep/1-0.jsonl": text,
        "q/7-0.jsonl": "not a letter\n",
        "q/8-0.jsonl": text + "{}\n",
        "q/9-0.jsonl": text.replace('"lane": "s"', '"lane": "other"'),
        "q/10-0.jsonl": "",
        "old/0-0.jsonl": text.replace('"written_at_ms"', '"no_time"'),
    }
    for name, content in others.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert Retention(place.letters(), DAY).expire(LATER_MS).files == 2
    assert files(place) == set(others)


def test_letters_of_a_batch_that_may_run_again_are_kept(place: Place) -> None:
    place.write(bad(4), commit=False)
    assert Retention(place.letters(), DAY).expire(LATER_MS).files == 2
    assert place.ids(State.NOT_FINAL) == [4]
    place.write(good(5), query_id="other")  # the lane belongs to another query now
    assert Retention(place.letters(), DAY).expire(LATER_MS).files == 1


def test_letters_of_an_open_replay_are_kept(place: Place) -> None:
    with pytest.raises(Killed):
        place.replay(Moments(9))
    assert place.ids(State.REPLAYING) == [2, 3]
    assert Retention(place.letters(), DAY).expire(LATER_MS) == Expired()
    place.replay()
    assert place.sums() == {1: 1, 2: 1, 3: 1}
    assert Retention(place.letters(), DAY).expire(LATER_MS).files == 2


def test_plans_without_letters_are_forgotten_but_numbers_go_on(place: Place) -> None:
    place.replay(accepts={2})
    place.replay(accepts=())
    place.write(bad(9))
    Retention(place.letters(), 40 * DAY).expire(LATER_MS)
    assert {"_plans/s/00000001.json", "_plans/s/00000002.json"} < files(place)
    assert place.waiting() == [3, 9]
    Retention(place.letters(), DAY).expire(LATER_MS)
    assert files(place) == {"_plans/s/00000002.json"}
    place.write(bad(10))
    [done] = place.replay()
    assert done.plan == 3
    assert place.sums() == {1: 1, 2: 1, 10: 1}


def test_weft_clean_deletes_the_letters_of_the_pipeline(place: Place) -> None:
    source = {"type": "kafka", "topic": "t"}
    path = place.folder / "p.yaml"
    whole = {
        "table": {"uri": "./table", "config": CONFIG},
        "kafka": {"bootstrap.servers": "${NOT_SET}"},
        "writers": {"s": {"source": source, "dead_letter": {"keep": "30 days"}}},
    }
    path.write_text(yaml.safe_dump(whole))
    assert "0 files of dead letters" in weft_output("clean", path)
    age(place, "q/0-1.jsonl", 31)
    assert "would delete 1 file of dead letters" in weft_output("clean", path, "--dry-run")
    cleaned = json.loads(weft_output("clean", path, "--json"))
    assert cleaned["dead_letters"]["files"] == 1
    assert place.waiting() == [3]
    del whole["writers"]["s"]["dead_letter"]  # type: ignore[attr-defined]
    path.write_text(yaml.safe_dump(whole))
    age(place, "q/1-0.jsonl", 400)
    assert "dead letters" not in weft_output("clean", path)
    assert place.waiting() == [3]


def test_the_clean_service_deletes_old_letters(place: Place, tmp_path: Path) -> None:
    retention = Retention(place.letters(), 30 * DAY)
    with (tmp_path / "status").open("wb") as status:
        reporter = Reporter(status.fileno(), Report())
        clean_round(place.table(), CleanSection(), reporter, lambda: [retention])
        assert "dead letters" not in reporter.report.message
        age(place, "q/0-1.jsonl", 31)
        retention = Retention(place.letters(), 30 * DAY)
        clean_round(place.table(), CleanSection(), reporter, lambda: [retention])
        assert "1 file of dead letters deleted" in reporter.report.message
    assert place.waiting() == [3]


def test_weft_services_deletes_old_letters(place: Place, tmp_path: Path) -> None:
    writer = {"source": {"type": "spark", "format": "rate"}, "stream": "s"}
    letters = {"path": place.letters_uri, "keep": "30 days"}
    whole = {"table": {"uri": place.table().uri}, "clean": {}, "writers": {"s": {**writer, "dead_letter": letters}}}
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(whole))
    age(place, "q/1-0.jsonl", 31)
    assert "1 file of dead letters deleted" in weft_output("services", path, "--once", "--json")
    assert place.waiting() == [2]


@pytest.mark.parametrize("letters", [{"path": "nothing://letters", "keep": "30 days"}, {"keep": "soon"}])
def test_weft_services_cleans_a_table_whose_dead_letters_cannot_be_found(place: Place, letters: dict[str, str]) -> None:
    writer = {"source": {"type": "spark", "format": "rate"}, "stream": "s", "dead_letter": letters}
    clean = {"retain": "0 seconds"}
    path = place.folder / "p.yaml"
    path.write_text(yaml.safe_dump({"table": {"uri": place.table().uri}, "clean": clean, "writers": {"s": writer}}))
    place.table().compact()
    assert place.table().clean(dt.timedelta(0), dry_run=True).files > 0
    done = weft("services", path, "--once", "--json")
    assert (done.exit_code, "dead_letter" in done.output or "nothing" in done.output) == (1, True), done.output
    assert place.table().clean(dt.timedelta(0), dry_run=True).files == 0
