"""The comparison with other formats: its inputs and oracle, its arguments, its table; and weft runs through it."""

from __future__ import annotations

import importlib.metadata
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.peers.__main__ import arguments, main
from tests.benchmarks.peers.concurrent_writers import cause_of
from tests.benchmarks.peers.cost import Cost
from tests.benchmarks.peers.dataset import KEY, Dataset
from tests.benchmarks.peers.inputs import Plan, newest, one_hot_group, same_keys, wide
from tests.benchmarks.peers.registry import SYSTEMS
from tests.benchmarks.peers.releases import RELEASES, Installed, install
from tests.benchmarks.peers.report import markdown
from tests.benchmarks.peers.run_task import run_task
from tests.benchmarks.peers.task import HOUR, TABLE, WRITERS, Outcome, Task
from tests.download_cache import Unavailable
from tests.lake_releases import PAIMON_0_9

ROOT = Path(__file__).parents[2]
SMALL = Plan("small", keys=300, buckets=2, columns=12, rounds=3, updated=0.1)
GENERATORS = {TABLE: wide, WRITERS: same_keys, HOUR: one_hot_group}


def rows_of(path: str) -> list[dict[str, object]]:
    return pq.read_table(path).to_pylist()


def applied_one_by_one(data: Dataset) -> dict[object, dict[str, object]]:
    """The table after all events, each compared with the row that is there."""
    table = {row[KEY]: row for row in rows_of(data.load)}
    for batch in data.batches:
        ordering = data.ordering(batch.group)
        for event in rows_of(data.path(batch)):
            row = table[event[KEY]]
            if event[ordering] > row[ordering]:
                row.update(event)
    return table


@pytest.mark.parametrize("part", GENERATORS)
def test_the_oracle_is_the_result_of_events_that_are_applied_one_by_one(part: str, tmp_path: Path) -> None:
    data = GENERATORS[part](SMALL, tmp_path)
    found = rows_of(data.oracle)
    assert {row[KEY]: row for row in found} == applied_one_by_one(data)
    assert len(found) == SMALL.keys
    assert list(found[0]) == list(data.columns())


def test_the_newest_event_of_a_key_wins_wherever_it_is() -> None:
    events = [(key, moment) for key in range(20) for moment in random.Random(1).sample(range(100), 5)]
    random.Random(2).shuffle(events)
    keys, moments = zip(*events, strict=True)
    found = newest(pa.table({KEY: keys, "ts": moments})).to_pylist()
    assert found == [{KEY: key, "ts": max(at for of, at in events if of == key)} for key in range(20)]


@pytest.mark.parametrize("part", GENERATORS)
def test_a_sixth_of_each_batch_is_older_than_the_load(part: str, tmp_path: Path) -> None:
    data = GENERATORS[part](SMALL, tmp_path)
    loaded = pq.read_table(data.load)
    for batch in data.batches:
        ordering = data.ordering(batch.group)
        events = pq.read_table(data.path(batch))
        assert events.column_names == [KEY, *data.groups[batch.group]]
        assert events.num_rows == SMALL.rows
        late = np.count_nonzero(events[ordering].to_numpy() < loaded[ordering].to_numpy().min())
        assert late == SMALL.rows // 6


def test_inputs_are_generated_once(tmp_path: Path) -> None:
    first = wide(SMALL, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert wide(SMALL, tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == written
    (first.folder / "dataset.json").unlink()  # as if the run had been killed
    assert wide(SMALL, tmp_path) == first


def test_writers_at_the_same_time_update_the_same_keys_in_other_groups(tmp_path: Path) -> None:
    for pair in same_keys(SMALL, tmp_path).rounds():
        first, second = (pq.read_table(tmp_path / SMALL.folder / batch.path)[KEY] for batch in pair)
        assert first == second
        assert pair[0].group != pair[1].group


def test_the_hot_keys_are_always_the_same(tmp_path: Path) -> None:
    data = one_hot_group(SMALL, tmp_path)
    assert len({tuple(pq.read_table(data.path(batch))[KEY].to_pylist()) for batch in data.batches}) == 1
    assert {batch.group for batch in data.batches} == {"hot"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--systems", "weft,hive"], "'hive': choose from weft,"),
        (["--systems", ""], "'': choose from"),
        (["--parts", "all"], "'all': choose from table,"),
        (["--keys", "10"], "10 is less than 1000"),
        (["--rounds", "many"], "'many' is not a whole number"),
        (["--jars", "paimon"], "'paimon' is not SYSTEM=FOLDER"),
        (["--jars", "weft=."], "is not SYSTEM=FOLDER"),
        (["--jars", "paimon=/nowhere"], "there are no jars in '/nowhere'"),
        (["--folder", __file__], "is not a folder"),
        (["--minutes", "3", "--every", "5"], "no compaction in 3 minutes"),
    ],
)
def test_bad_arguments_are_refused(given: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        arguments(given)
    assert refused.value.code == 2
    assert reason in capsys.readouterr().err


def test_smoke_is_small_and_its_sizes_can_be_changed() -> None:
    assert arguments(["--smoke"]).keys < 10_000
    assert arguments(["--smoke", "--keys", "7000"]).keys == 7_000
    assert arguments([]).keys == 2_000_000


def test_every_peer_has_a_release_and_every_system_a_module() -> None:
    assert {name for name in SYSTEMS if not name.startswith("weft")} == set(RELEASES)
    folder = Path(__file__).parent / "peers"
    assert all((folder / f"{module}.py").is_file() for module, _ in SYSTEMS.values())


def test_what_cannot_be_fetched_is_replaced_or_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = {PAIMON_0_9.folder}

    def jars(name: str, *_: object, **__: object) -> Path:
        if name not in served:
            raise Unavailable("mvn fails: much output")
        return tmp_path

    monkeypatch.setattr("tests.benchmarks.peers.releases.maven_jars", jars)
    monkeypatch.setattr("tests.benchmarks.peers.releases.python_packages", lambda *_: tmp_path)
    older = install("paimon")
    assert (older.version, older.spark, older.missing) == ("0.9.0", "3.5.9", "no 1.4.2: mvn fails")
    newest_of_all = install("paimon", tmp_path)
    assert (newest_of_all.version, newest_of_all.missing) == ("1.4.2 (given jars)", "")
    with pytest.raises(Unavailable, match=r"no 1\.2\.0: mvn fails"):
        install("hudi")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[CONFLICT] two writers\nmore", "[CONFLICT] two writers"),
        (
            "An error occurred while calling o57.sql.\n: ConcurrentAppend: files were added",
            "ConcurrentAppend: files were added",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_of_a_failed_commit_is_one_line(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause


BUSY = "import time\nwhile time.process_time() < 3:\n    pass"
MEASURE = """
import json, subprocess, sys, time
from tests.benchmarks.peers.cost import Cost
cost = Cost.of(lambda: {run})
print(json.dumps([cost.seconds, cost.cpu, Cost.of(lambda: None).cpu]))
"""


def measured(run: str) -> tuple[Cost, float]:
    """The cost of code, and the CPU seconds of nothing after it.

    A process of its own measures it: below this one, a JVM that other tests share may be at work.
    """
    command = [sys.executable, "-c", MEASURE.format(run=run)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=True).stdout
    seconds, cpu, afterwards = json.loads(output)
    return Cost(seconds, cpu), afterwards


def test_a_cost_has_seconds_and_cpu_seconds() -> None:
    waited, _ = measured("time.sleep(1)")
    assert waited.cpu < 0.7 < waited.seconds
    assert Cost.median([Cost(1, 9), Cost(2, 7), Cost(3, 8)]) == Cost(2, 8)


def test_the_cost_is_also_that_of_processes_of_processes_that_nobody_waits_for() -> None:
    forgets = "import signal, subprocess, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    program = [sys.executable, "-c", f"{forgets}subprocess.run([sys.executable, '-c', {BUSY!r}])"]
    first, afterwards = measured(f"subprocess.run({program!r}, check=True)")
    assert 1.5 < first.cpu < 5.5
    assert afterwards > -0.01


def test_the_table_has_ratios_and_says_what_was_skipped_or_failed() -> None:
    figures = {"commits": 10, "failed": 3, "failed again": 0, "wrong rows": 1_234, "causes": ["a | b"]}
    hour = {
        **dict.fromkeys(("commits", "compactions", "wrong rows"), 2),
        **dict.fromkeys(("bytes after load", "bytes after clean"), 5_000_000),
        "bytes committed": 1_000_000,
        "bytes written": 2_500_000,
        **Cost(1.5, 3.0).figures("sums"),
        **Cost(0.5, 2.0).figures("plain sums"),
    }
    shown = markdown(
        [
            Outcome("hudi", WRITERS, "1.0", "3.5", figures=figures, load_average=(1.0, 2.5)),
            Outcome("delta", WRITERS, skipped="no network"),
            Outcome("iceberg", WRITERS, "1.2", "4.1", failed="it | broke", note="no 1.3: mvn fails"),
            Outcome("weft", HOUR, "0.1", "4.3", figures={"everything": hour, "own policy": hour}),
        ]
    )
    assert "| hudi 1.0, Spark 3.5 | 3 of 10 | 0 | 1,234 | a / b |" in shown
    assert "| delta | SKIPPED: no network |  |  |  |" in shown
    assert "| iceberg 1.2, Spark 4.1 | FAILED: it / broke |  |  |  |" in shown
    assert "iceberg: not the newest release, no 1.3: mvn fails" in shown
    assert "Load average of the machine: 1.0 to 2.5" in shown
    assert (
        "| weft 0.1, Spark 4.3: own policy | 5.0 MB | 1.0 MB | 2 | 2.5 MB (2.50 x) | 1.50 s (3.00 x; CPU 1.50 x) |"
        in shown
    )


ONE_PART = """
import json, os, pathlib, sys
*_, task, answers, progress = sys.argv
os.write(int(progress), b"half done\\n")
folder = pathlib.Path(json.loads(pathlib.Path(task).read_text())["folder"])
(folder / "table").write_text("rows")
print("what a jar prints")
answer = {"system": "delta", "part": "table", "figures": {"load": 1.5}}
pathlib.Path(answers).write_text(json.dumps(answer))
"""
BROKEN, ENDLESS = "raise ValueError('no memory')", "import time; time.sleep(600)"


@pytest.mark.parametrize(
    ("end", "minutes", "reason"),
    [
        ("", 1.0, "no answer"),
        (BROKEN, 1.0, "ValueError: no memory"),
        pytest.param(ENDLESS, 0.25, "not finished after 0.25 minutes", marks=pytest.mark.slow),
    ],
)
def test_what_was_measured_counts_if_the_process_does_not_finish(
    end: str, minutes: float, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = {TABLE: "a", WRITERS: "b"}
    task = Task("delta", "4.4", data, warm_up="", folder=str(tmp_path), rounds=1, every=1, jars=[])
    installed = Installed("4.4", "4.2", [sys.executable, "-c", ONE_PART + end], {}, [], missing="no 4.5")
    done, lost = run_task(task, installed, minutes)
    assert (done.part, done.figures, done.failed, done.note) == (TABLE, {"load": 1.5}, "", "no 4.5")
    assert (lost.part, lost.figures, lost.failed, lost.version) == (WRITERS, {}, reason, "4.4")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out.startswith("half done\n")


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(1_200)
def test_weft_is_measured_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The peers: the nightly loop runs them all with ``--smoke``."""
    lines, inputs = tmp_path / "figures.jsonl", tmp_path / "inputs"
    given = ["--smoke", "--systems", "weft-overlays", "--keys", "1000", "--writer-keys", "1000", "--hour-keys", "1000"]
    monkeypatch.setattr("sys.argv", ["peers", *given, "--json", str(lines), "--folder", str(inputs)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert main() == 0
    assert list((tmp_path / "temporary").iterdir()) == []
    found = {line["part"]: line["figures"] for line in map(json.loads, lines.read_text().splitlines())}
    assert set(found) == {TABLE, WRITERS, HOUR}
    assert found[TABLE]["wrong rows dirty"] == found[TABLE]["wrong rows compacted"] == 0
    assert found[WRITERS]["wrong rows"] == found[WRITERS]["failed"] == 0
    assert [found[HOUR][kind]["wrong rows"] for kind in ("everything", "own policy")] == [0, 0]
    assert f"| weft-overlays {importlib.metadata.version('weft')}, Spark" in capfd.readouterr().out
