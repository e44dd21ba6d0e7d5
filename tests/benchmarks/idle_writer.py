"""The cost of an idle writer, and the time until its first commit.

    python -m tests.benchmarks.idle_writer [--before REVISION] [--rounds 3] [--idle 60] [--trigger "1 second"]
                                           [--load 400000] [--spark NAME=VALUE ...] [--restart]

A real writer job, as `weft run` starts it, reads 1,000 JSON messages of the embedded broker into a new
table. After its first commit it idles until Spark has ended its idle Python workers (a minute), and is then measured.
With ``--load`` this many more messages are sent then, all at once. The seconds and CPU seconds until they are committed
show whether a saving makes a busy writer slower; the memory a minute later shows what it keeps. With ``--before`` a
writer of another git revision of this repository takes turns with it. With ``--restart`` the writer is started a second
time, on its checkpoint, and that start is measured.

*PSS* is the proportional set size: a page that n processes map counts 1/n in each, so the sum over processes is the
memory that they take together. *RSS* counts such pages in each of them, as `ps` does. Both are of
``/proc/PID/smaps_rollup``, in MiB; swap is not in them. Files that other processes of this machine map as well, such
as the libraries of the benchmark's own Python, make PSS smaller than it is for a writer alone on its machine, where it
is near to RSS minus what its own processes share.

CPU seconds are those of all processes of the job, including ended ones. They are sampled, so the last `SAMPLE_SECONDS`
of a process are not counted. Phases are observed from outside, by processes and files that appear:

    imports      to the start of the JVM: Python modules are imported, brokers and store have answered
    jvm          to the folder of Spark's block manager: the JVM and Spark's context are running
    query        to the metadata of the checkpoint: the source was loaded, the lane is claimed, the query starts
    source       to the first entry in the offset log: the source runs, and has returned its offsets
    commit       to the first commit of rows

A restarted query does not write its metadata again, so *query* is then part of *source*.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.run import open_table

TOPIC = "orders"
MESSAGES = 1_000
PARTITIONS = 4
SAMPLE_SECONDS = 0.05
WAIT_SECONDS = 600.0
STOP_SECONDS = 20.0
SETTLE_SECONDS = 75.0  # Spark looks each 10 s for Python workers that were idle for 60 s
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[2]
PHASES = ("imports", "jvm", "query", "source", "commit")
SPAWNING = "spawning"  # for a moment, each time that a JVM starts a process
KINDS = {
    "org.apache.spark.launcher.Main": "launcher",
    "org.apache.spark.deploy.SparkSubmit": "JVM",
    "pyspark.sql.streaming.python_streaming_source_runner": "source runner",
    "pyspark.daemon": "daemon",
    "weft.streams.write.writer_job": "job",
    "jspawnhelper": SPAWNING,
}
"""Kinds of processes by a part of their command line; the first match counts. Workers have that of their daemon."""


@dataclass
class Process:
    """Memory of one process, in MiB."""

    kind: str
    pss: float
    rss: float


@dataclass
class Measured:
    """One writer: seconds of each phase, CPU seconds to the first commit, processes and CPU a minute when idle."""

    phases: dict[str, float]
    cpu_first: float
    cpu_idle: float
    processes: list[Process]
    jvm_flags: str
    load_seconds: float = 0.0
    load_cpu: float = 0.0
    after_load: list[Process] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    def memory(self, size: str, kind: str | None = None) -> float:
        """PSS or RSS of the idle processes of one kind, or of all processes."""
        return sum(getattr(process, size) for process in self.processes if kind in {None, process.kind})


@dataclass
class Tree:
    """The child processes of a process, and the CPU seconds that they have used, ended ones included."""

    root: int
    used: dict[int, float] = field(default_factory=dict)

    def sample(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(OSError):
                numbers = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                self.used[pid] = (int(numbers[11]) + int(numbers[12])) / TICKS

    def pids(self) -> list[int]:
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    parents.setdefault(parent, []).append(int(entry.name))
        found = [self.root]
        for pid in found:
            found += parents.get(pid, [])
        return found

    @property
    def cpu(self) -> float:
        return sum(self.used.values())

    def command(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return ""

    def processes(self) -> list[Process]:
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                command = self.command(pid)
                parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
                kind = next((kind for part, kind in KINDS.items() if part in command), command.split(" ")[0])
                if kind == "daemon":
                    kind = "worker" if self.command(parent) == command else f"daemon, {command.rsplit('.', 1)[1]}"
                sizes = {
                    line.split(":")[0]: int(line.split()[1]) / 1024
                    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                }
                found.append(Process(kind, sizes["Pss"], sizes["Rss"]))
        return sorted(found, key=lambda process: -process.pss)

    def jvm_flags(self) -> str:
        for pid in self.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if "org.apache.spark.deploy.SparkSubmit" in words:
                    return " ".join(word for word in words if word.startswith("-X"))
        return ""


def write_pipeline(folder: Path, servers: str, trigger: str, spark: dict[str, str]) -> Path:
    config = {
        "key": ["order_id"],
        "columns": {"order_id": "bigint", "status": "string", "amount": "double", "at": "bigint"},
        "groups": {"order": {"columns": ["status", "amount", "at"], "ordering": ["at"]}},
        "streams": {"orders": {"groups": ["order"]}},
    }
    writer = {
        "source": {"type": "kafka", "topic": TOPIC, "starting_offsets": "earliest"},
        "schema": config["columns"],
        "trigger": trigger,
    }
    path = folder / "pipeline.yaml"
    whole = {
        "table": {"uri": "./table", "config": config},
        "kafka": {"bootstrap.servers": servers},
        "spark": spark,
        "compaction": False,
        "writers": {"orders": writer},
    }
    path.write_text(yaml.safe_dump(whole))
    return path


def produce(broker: EmbeddedBroker, first: int, count: int = MESSAGES) -> None:
    producer = broker.producer()
    for number in range(first, first + count):
        value = {"order_id": number, "status": "new", "amount": number / 4, "at": number}
        producer.produce(TOPIC, json.dumps(value).encode(), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0


def measure(code: Path, options: argparse.Namespace, spark: dict[str, str]) -> Measured:
    with tempfile.TemporaryDirectory(prefix="weft-idle-") as name, EmbeddedBroker() as broker:
        broker.create_topics({TOPIC: PARTITIONS})
        path = write_pipeline(Path(name), broker.bootstrap_servers, options.trigger, spark)
        produce(broker, 0)
        if options.restart:
            with start(code, path) as writer:
                first_commit(writer, load_pipeline(path).state, set())
            produce(broker, MESSAGES)
        state = load_pipeline(path).state
        before = set(state.rglob("*"))
        with start(code, path) as writer:
            measured = first_commit(writer, state, before)
            tree = writer.tree
            watch(writer, SETTLE_SECONDS)
            used = tree.cpu
            watch(writer, options.idle)
            measured.cpu_idle = (tree.cpu - used) / options.idle * 60
            measured.processes, measured.jvm_flags = tree.processes(), tree.jvm_flags()
            if options.load:
                target = writer.report["rows"] + options.load
                produce(broker, 2 * MESSAGES, options.load)
                used, began = tree.cpu, time.monotonic()
                while writer.look()["rows"] < target:
                    assert time.monotonic() < began + WAIT_SECONDS, "the load is not committed"
                measured.load_seconds, measured.load_cpu = time.monotonic() - began, tree.cpu - used
                watch(writer, SETTLE_SECONDS)
                measured.after_load = tree.processes()
        return measured


class Writer:
    """A writer job without a supervisor, so that one of another revision works as well; its last report."""

    def __init__(self, code: Path, path: Path, log: IO[bytes]) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        self._log = Path(log.name)
        module = "weft.streams.write.writer_job" if (code / "weft").is_dir() else "streams.write.writer_job"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(path), "orders"],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**clean, "PYTHONPATH": str(code)},
            start_new_session=True,
        )
        self.report: dict[str, Any] = {"rows": 0}
        self.tree = Tree(self._process.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self.report = json.loads(line)

    def look(self) -> dict[str, Any]:
        """Sample the processes, wait a little, and return the last report."""
        self.tree.sample()
        time.sleep(SAMPLE_SECONDS)
        assert self._process.poll() is None, self._log.read_text()
        return self.report

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def start(code: Path, path: Path) -> Iterator[Writer]:
    open_table(load_pipeline(path))
    with tempfile.NamedTemporaryFile() as log:
        writer = Writer(code, path, log)
        try:
            yield writer
        finally:
            writer.stop()


def first_commit(writer: Writer, state: Path, before: set[Path]) -> Measured:
    names = PHASES if not before else tuple(name for name in PHASES if name != "query")
    began = time.time()
    moments: list[float] = []
    while True:
        report = writer.look()
        assert time.time() < began + WAIT_SECONDS, "no commit came"
        if len(moments) < len(names) - 1 and ended(names[len(moments)], writer.tree, state, before):
            moments.append(time.time())
        if report["rows"] >= MESSAGES:
            break
    edges = [began, *moments, report["committed_at_ms"] / 1000]
    assert len(edges) == len(names) + 1, f"a phase was not seen: {moments}"
    phases = {name: end - start for name, start, end in zip(names, edges, edges[1:], strict=False)}
    return Measured(phases, writer.tree.cpu, 0.0, [], "")


def ended(phase: str, tree: Tree, state: Path, before: set[Path]) -> bool:
    if phase == "imports":
        return any("org.apache.spark.deploy.SparkSubmit" in tree.command(pid) for pid in tree.pids())
    pattern = {"jvm": "scratch/orders/blockmgr-*", "query": "checkpoints/orders/metadata"}
    files = set(state.glob(pattern.get(phase, "checkpoints/orders/offsets/*")))
    return any(path not in before and path.suffix != ".crc" and "tmp" not in path.name for path in files)


def watch(writer: Writer, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        writer.look()
        time.sleep(4 * SAMPLE_SECONDS)


@contextlib.contextmanager
def revision(name: str) -> Iterator[Path]:
    """Check out another revision into a folder."""
    with tempfile.TemporaryDirectory(prefix="weft-revision-") as folder:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", name], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def show(results: dict[str, list[Measured]]) -> None:
    names = list(results)
    print(f"{'':34}" + "".join(f"{name:>22}" for name in names) + f"{'ratio':>10}")

    def line(title: str, values: list[float], unit: str) -> None:
        ratio = f"{values[-1] / values[0]:>9.2f} x" if len(values) > 1 and values[0] else ""
        print(f"{title:34}" + "".join(f"{value:>18.1f} {unit:3}" for value in values) + ratio)

    def medians(value: Callable[[Measured], float]) -> list[float]:
        return [statistics.median(value(run) for run in results[name]) for name in names]

    for phase in results[names[0]][0].phases:
        line(f"seconds, {phase}", medians(lambda run, phase=phase: run.phases[phase]), "s")
    line("seconds to the first commit", medians(lambda run: run.seconds), "s")
    line("CPU seconds to the first commit", medians(lambda run: run.cpu_first), "s")
    line("CPU seconds a minute, idle", medians(lambda run: run.cpu_idle), "s")
    line("processes", medians(lambda run: len(run.processes)), "")
    kinds = sorted({process.kind for runs in results.values() for run in runs for process in run.processes})
    for size in ("pss", "rss"):
        for kind in kinds:
            line(f"{size.upper()}, {kind}", medians(lambda run, size=size, kind=kind: run.memory(size, kind)), "MiB")
        line(f"{size.upper()}, together", medians(lambda run, size=size: run.memory(size)), "MiB")
    if results[names[0]][0].after_load:
        line("seconds, load", medians(lambda run: run.load_seconds), "s")
        line("CPU seconds, load", medians(lambda run: run.load_cpu), "s")
        line("PSS after the load, together", medians(lambda run: sum(p.pss for p in run.after_load)), "MiB")
    for name in names:
        print(f"JVM of {name}: {results[name][-1].jvm_flags}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="git revision to compare with; both take turns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--idle", type=float, default=60.0, help="seconds for which the CPU of the idle writer is measured"
    )
    parser.add_argument("--load", type=int, default=0, help="number of messages that are sent at once at the end")
    parser.add_argument("--trigger", default="1 second")
    parser.add_argument("--spark", action="append", default=[], help="a setting of the pipeline file, NAME=VALUE")
    parser.add_argument(
        "--restart", action="store_true", help="measure a second start, on the checkpoint of the first one"
    )
    arguments = parser.parse_args()
    spark = dict(setting.split("=", 1) for setting in arguments.spark)
    with contextlib.ExitStack() as stack:
        codes = {"now": ROOT}
        if arguments.before:
            codes = {arguments.before: stack.enter_context(revision(arguments.before)), **codes}
        results: dict[str, list[Measured]] = {name: [] for name in codes}
        for _ in range(arguments.rounds):
            for name, code in codes.items():
                results[name].append(measure(code, arguments, spark))
                last = results[name][-1]
                sys.stderr.write(f"{name}: {last.seconds:.1f} s, CPU {last.cpu_first:.1f} s\n")
        print(f"trigger {arguments.trigger}, {MESSAGES} messages, medians of {arguments.rounds} rounds")
        show(results)


if __name__ == "__main__":
    main()
