"""``weft dead-letters`` without Spark: list, count, show and drop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.streams.letters.rig import CONFIG, Killed, Moments, Place, bad, good
from tests.streams.support.pipelines import weft, weft_output
from tests.streams.support.terminal import run


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.new(tmp_path / "place")
    place.write(good(1), bad(2), bad(3))
    place.write(bad(4))
    place.write(bad(5), commit=False)
    return place


@pytest.fixture
def file(place: Place) -> Path:
    """A pipeline file with a writer, another one without letters, and one that has no dead letters."""
    path = place.folder / "p.yaml"
    source = {"type": "kafka", "topic": "t"}
    writers = {
        "main": {"source": source, "stream": "s"},
        "more": {"source": source, "stream": "s", "lane": "more", "dead_letter": "./elsewhere"},
        "strict": {"source": source, "stream": "s", "lane": "strict", "on_error": "stop"},
    }
    path.write_text(yaml.safe_dump({"table": {"uri": "./table", "config": CONFIG}, "writers": writers}))
    return path


def listed(file: Path, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in weft("dead-letters", "list", file, "--json", *options).stdout.splitlines()]


def test_list_has_names_states_positions_and_reasons(place: Place, file: Path) -> None:
    rows = listed(file)
    assert [(row["letter"], row["state"], row["offset"]) for row in rows] == [
        ("q/0-0:1", "waiting", 2),
        ("q/0-1:1", "waiting", 1),
        ("q/1-0:1", "waiting", 100),
        ("q/2-0:1", "not final", 200),
    ]
    assert rows[0] == {
        "letter": "q/0-0:1",
        "state": "waiting",
        "stream": "s",
        "time": "1970-01-01T00:00:01.002+00:00",
        "topic": "t",
        "partition": 0,
        "offset": 2,
        "reason": "it is bad",
        "value": '{"id": 3, "n": 1, "bad": true}',
    }
    assert "4 dead letters" in weft_output("dead-letters", "list", file)
    assert "the first 2 dead letters; --limit shows more" in weft_output("dead-letters", "list", file, "--limit", "2")
    place.replay(accepts={2})
    assert {row["state"] for row in listed(file)} == {"waiting", "not final"}
    assert [row["state"] for row in listed(file, "--all")].count("replayed") == 3


def test_a_list_fits_the_terminal(place: Place, file: Path) -> None:
    """The reason is shown whole, and the value is cut; a pipe cuts nothing."""
    place.write(bad(6))
    shown = run([["dead-letters", "list", file]], columns=50, output_too=True).words
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 50, lines
    first = lines.index("q/0-0:1  waiting")
    assert lines[first + 1 : first + 5] == [
        "    stream s, topic t, partition 0, offset 2,",
        "    1970-01-01T00:00:01.002+00:00",
        "    it is bad",
        '    {"id": 3, "n": 1, "bad": true}',
    ]
    piped = weft_output("dead-letters", "list", file)
    assert "    stream s, topic t, partition 0, offset 2, 1970-01-01T00:00:01.002+00:00\n" in piped
    wide = weft_output("dead-letters", "list", file, "--wide")
    assert "│ q/0-0:1 │ waiting" in wide


def test_letters_in_a_replay_that_was_killed_are_shown(place: Place, file: Path) -> None:
    with pytest.raises(Killed):
        place.replay(Moments(9))
    assert [row["state"] for row in listed(file)] == ["replaying"] * 3 + ["not final"]


@pytest.mark.parametrize(
    ("by", "counts"),
    [
        ("reason", {"it is bad": 4}),
        ("state", {"waiting": 3, "not final": 1}),
        ("stream", {"s": 4}),
        ("topic", {"t": 4}),
        ("partition", {0: 4}),
    ],
)
@pytest.mark.usefixtures("place")
def test_count(file: Path, by: str, counts: dict[Any, int]) -> None:
    lines = weft_output("dead-letters", "count", file, "--by", by, "--json").splitlines()
    assert {row[by]: row["letters"] for row in map(json.loads, lines)} == counts


@pytest.mark.usefixtures("place")
def test_show_prints_everything(file: Path) -> None:
    shown = json.loads(weft_output("dead-letters", "show", file, "q/1-0:1", "--json"))
    assert (shown["value"], shown["timestamp_ms"], shown["lane"], shown["schema_id"]) == (
        '{"id": 4, "n": 1, "bad": true}',
        1_100,
        "s",
        None,
    )
    text = weft_output("dead-letters", "show", file, "q/1-0:1")
    assert "it is bad" in text
    assert "     timestamp  1970-01-01T00:00:01.100+00:00\n" in text  # as in the list


def test_drop_deletes_letters_that_wait(place: Place, file: Path) -> None:
    asked = weft("dead-letters", "drop", file)
    assert asked.exit_code == 2
    assert "Delete 3 dead letters?" in asked.stderr
    assert place.waiting() == [2, 3, 4]
    assert "3 dead letters deleted" in weft_output("dead-letters", "drop", file, "--yes")
    assert [row["letter"] for row in listed(file, "--all")] == ["q/2-0:1"]
    assert not Path(place.letters_uri, "q/0-0.jsonl").exists()
    assert "0 dead letters deleted" in weft_output("dead-letters", "drop", file)
    assert place.replay() == []
    assert place.sums() == {1: 1}


def test_drop_all_deletes_replayed_letters_too(place: Place, file: Path) -> None:
    place.replay(accepts={2})
    assert "2 dead letters deleted" in weft_output("dead-letters", "drop", file, "--yes")
    assert [row["state"] for row in listed(file, "--all")] == ["replayed"] * 3 + ["not final"]
    assert "3 dead letters deleted" in weft_output("dead-letters", "drop", file, "--all", "--yes")
    assert [row["letter"] for row in listed(file, "--all")] == ["q/2-0:1"]
    assert [path.name for path in Path(place.letters_uri).rglob("*.jsonl")] == ["2-0.jsonl"]
    assert place.sums() == {1: 1, 2: 1}


@pytest.mark.usefixtures("place")
def test_only_chooses_a_writer_or_stream(file: Path) -> None:
    assert len(listed(file, "--only", "main")) == len(listed(file, "--only", "s")) == 4
    assert listed(file, "--only", "more") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "FILE", "--only", "nobody"], "writer 'nobody' has no dead letters"),
        (["list", "FILE", "--only", "strict"], "writer 'strict' has no dead letters"),
        (["list", "nowhere.yaml"], "there is no pipeline file"),
        (["show", "FILE", "x"], "'x' is not the name of a dead letter"),
        (["show", "FILE", "../../q/0-0:1"], "is not the name of a dead letter"),
        (["count", "FILE", "--by", "colour"], "colour"),
        (["replay", "FILE"], "writers.main.schema: is missing"),
    ],
)
@pytest.mark.usefixtures("place")
def test_wrong_arguments(file: Path, arguments: list[str], message: str) -> None:
    done = weft("dead-letters", *(str(file) if text == "FILE" else text for text in arguments))
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.usefixtures("place")
def test_a_letter_that_does_not_exist(file: Path) -> None:
    done = weft("dead-letters", "show", file, "q/1-0:9")
    assert done.exit_code == 1
    assert "there is no dead letter q/1-0:9" in done.stderr


def test_a_file_that_is_not_of_letters_is_named(place: Place, file: Path) -> None:
    Path(place.letters_uri, "q/0-9.jsonl").write_text("hello\n")
    done = weft("dead-letters", "list", file)
    assert done.exit_code == 1
    assert "q/0-9.jsonl, line 1: this is not a dead letter" in done.stderr
