"""The supervisor with real child processes: restarts and their limit, stopping, and no orphans."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_process import alive, gone
from weft.storage.errors import CommitUnknown, Conflict, Fenced, InvalidInput, StoreRefused, StoreUnavailable
from weft.streams.kafka.errors import SourceRefused, SourceUnavailable
from weft.streams.pipeline.run import job_process
from weft.streams.pipeline.run.error_kinds import Ending, ending_of
from weft.streams.pipeline.run.report import Report, encode_report, parse_report
from weft.streams.pipeline.run.supervisor import Job, JobStatus, Phase, RestartPolicy, Supervisor, ending_of_all

PATIENCE_SECONDS = 120.0  # for operations of milliseconds on an idle machine
QUICK = RestartPolicy(first_seconds=0.01, last_seconds=0.02, max_failures=3)

# A correct job: reports, and stops on SIGTERM.
SERVE = """
import os
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.stop_signal import StopSignal
stop, reporter = StopSignal(), Reporter.from_environment()
reporter.update(doing="running", rows=reporter.report.rows + 10)
while not stop.wait(60): pass
reporter.update(doing="stopping", message="bye")
"""


# Waits again and again. The signal comes one line of code later each time, until a wait ends before it.
SIGNALLED = """
import os, signal, sys
from weft.streams.pipeline.run.stop_signal import StopSignal
lines, is_sent = 0, True
while is_sent:
    stop, lines_left, is_sent = StopSignal(), lines, False
    def trace(frame, event, arg):
        global lines_left, is_sent
        lines_left -= event == "line"
        if lines_left < 0 and not is_sent:
            is_sent = True
            os.kill(os.getpid(), signal.SIGTERM)
        return trace
    sys.settrace(trace)
    stop.wait(0.01)
    sys.settrace(None)
    assert bool(stop) == stop.wait(0) == is_sent
    lines += 1
print(lines)
"""


@pytest.fixture(autouse=True)
def _a_log_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: the reason of a failure is the last line of a log."""
    monkeypatch.setattr(job_process, "_PUMP_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def made(code: str, name: str = "a", **rest: object) -> Job:
        return Job(name, (sys.executable, "-c", code), tmp_path / f"logs/{name}.log", **rest)

    return made


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervisor]]:
    started = []

    def started_one(*jobs: Job, policy: RestartPolicy = QUICK) -> Supervisor:
        supervisor = Supervisor(jobs, policy)
        started.append(supervisor)
        supervisor.start()
        return supervisor

    yield started_one
    for supervisor in started:
        supervisor.stop(at_once=True)


def until(supervisor: Supervisor, true: Callable[[JobStatus], bool], name: str = "a") -> JobStatus:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for status in supervisor.poll(0.2):
            if status.name == name and true(status):
                return status
    raise AssertionError(f"not within {PATIENCE_SECONDS} s: {supervisor.statuses}")


def ended(status: JobStatus) -> bool:
    return status.phase in {Phase.DONE, Phase.STOPPED, Phase.FENCED, Phase.FAILED}


def test_jobs_that_finish_are_done(job: Callable[..., Job]) -> None:
    supervisor = Supervisor([job("print('hello')", "a"), job("pass", "b")], QUICK)
    assert supervisor.run()
    assert [status.phase for status in supervisor.statuses] == [Phase.DONE, Phase.DONE]
    assert "hello" in supervisor.statuses[0].log.read_text()


def test_a_failing_job_is_restarted_with_growing_delays_up_to_a_limit(
    job: Callable[..., Job], supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    failing = f"open({str(starts)!r}, 'a').write('x'); print('reason 42'); raise SystemExit(1)"
    supervisor = supervise(job(failing), job("pass", "b"))
    status = until(supervisor, ended)
    assert status.phase is Phase.FAILED
    assert starts.read_text() == "xxx"
    assert status.restarts == 2
    assert status.message == "exit code 1: reason 42 (failed 3 times in a row)"
    assert "reason 42" in status.tail
    assert until(supervisor, ended, "b").phase is Phase.DONE, "a failure of one job does not count for the other"
    assert not supervisor.succeeded


def test_delays_double_up_to_a_bound_and_end() -> None:
    policy = RestartPolicy(first_seconds=1, last_seconds=5, max_failures=6)
    assert [policy.delay(n) for n in range(1, 8)] == [1, 2, 4, 5, 5, None, None]


def ending(code: int, *, progress: str = "0", message: str = "") -> str:
    """A job that reports and ends; ``progress`` is what it adds."""
    return f"""
from weft.streams.pipeline.run.reporter import Reporter
reporter = Reporter.from_environment()
reporter.update(progress=reporter.report.progress + {progress}, message={message!r})
raise SystemExit({code})
"""


def test_progress_resets_the_count_of_failures(job: Callable[..., Job], supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(job(ending(1, progress="1")))
    status = until(supervisor, lambda s: s.restarts >= 5)
    assert status.phase is not Phase.FAILED
    assert status.failures <= 1


def test_a_slow_start_does_not_reset_the_count_of_failures(
    job: Callable[..., Job], supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    """A run is judged by its progress: waiting at the start, like a JVM's start, is no progress."""
    starts = tmp_path / "starts"
    slow = f"import time; time.sleep(0.3); open({str(starts)!r}, 'a').write('x'); raise SystemExit(1)"
    at_once_old = RestartPolicy(first_seconds=0.01, last_seconds=0.01, max_failures=2)
    status = until(supervise(job(slow), policy=at_once_old), ended)
    assert (status.phase, status.failures, starts.read_text()) == (Phase.FAILED, 2, "xx")


def test_outages_are_restarted_more_often_than_failures(
    job: Callable[..., Job], supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    """An outage of eight starts, more than a failing job gets; then it ends, and the job does its work."""
    starts = tmp_path / "starts"
    away = f"""
from pathlib import Path
from weft.streams.pipeline.run.outage import JobOutages
from weft.streams.pipeline.run.reporter import Reporter
starts = Path({str(starts)!r})
starts.write_text((starts.read_text() if starts.exists() else "") + "x")
if len(starts.read_text()) <= 8:
    JobOutages(Reporter.from_environment(), None).report_outage("the broker b:1", "no answer")
    raise SystemExit({int(Ending.UNAVAILABLE)})
"""
    supervisor = supervise(job(away))
    waiting = until(supervisor, lambda s: s.restarts >= 5)
    assert waiting.report.waiting_for == "the broker b:1"
    assert waiting.failures == 0
    since = waiting.report.waiting_since_ms
    assert since is not None
    later = until(supervisor, lambda s: s.restarts >= 7)
    assert later.report.waiting_since_ms == since, "one outage, whichever process noticed it"
    done = until(supervisor, ended)
    assert (done.phase, done.restarts) == (Phase.DONE, 8)


def test_an_outage_does_not_reset_the_count_of_failures(
    job: Callable[..., Job], supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    turns = tmp_path / "turns"
    mixed = f"""
from pathlib import Path
turns = Path({str(turns)!r})
turns.write_text((turns.read_text() if turns.exists() else "") + "x")
raise SystemExit({int(Ending.UNAVAILABLE)} if len(turns.read_text()) % 2 else 1)
"""
    status = until(supervise(job(mixed)), ended)
    assert (status.phase, turns.read_text()) == (Phase.FAILED, "xxxxxx"), "three outages, three failures"


def test_without_waiting_an_outage_is_a_failure_that_is_not_tried_again(
    job: Callable[..., Job], supervise: Callable[..., Supervisor]
) -> None:
    impatient = RestartPolicy(first_seconds=0.01, last_seconds=0.01, max_failures=2, waits_out=False)
    status = until(supervise(job(ending(Ending.UNAVAILABLE, message="no answer")), policy=impatient), ended)
    assert (status.phase, status.message) == (Phase.FAILED, "no answer")


@pytest.mark.parametrize("code", [1, Ending.REFUSED, Ending.FENCED])
def test_with_exit_on_failure_one_failed_job_stops_all(job: Callable[..., Job], code: int) -> None:
    supervisor = Supervisor([job(ending(code), "a"), job(SERVE, "b")], QUICK)
    assert not supervisor.run(exit_on_failure=True)
    a, b = supervisor.statuses
    assert a.is_lost
    assert (b.phase, b.is_lost) == (Phase.STOPPED, False)


def test_with_exit_on_failure_a_failed_service_stops_all(job: Callable[..., Job]) -> None:
    supervisor = Supervisor([job(SERVE, "writer"), job(ending(3), "service", background=True)], QUICK)
    assert not supervisor.run(exit_on_failure=True)
    assert [status.phase for status in supervisor.statuses] == [Phase.STOPPED, Phase.FAILED]


def test_the_reason_of_a_failure_comes_from_the_job_or_from_its_log(
    job: Callable[..., Job], supervise: Callable[..., Supervisor]
) -> None:
    said = until(supervise(job("print('a page of plan')\n" + ending(3, message="column x is missing"))), ended)
    assert (said.message, said.tail) == ("column x is missing", ())
    silent = until(supervise(job("print('reason 42'); raise SystemExit(3)")), ended)
    assert (silent.message, silent.tail) == ("exit code 3: reason 42", ("reason 42",))


def test_a_killed_job_continues_its_totals(job: Callable[..., Job], supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(job(SERVE))
    first = until(supervisor, lambda s: s.report.doing == "running")
    assert (first.report.rows, first.restarts) == (10, 0)
    os.kill(first.pid, signal.SIGKILL)
    second = until(supervisor, lambda s: s.restarts == 1 and s.report.doing == "running")
    assert second.report.rows == 20
    assert second.pid not in {None, first.pid}
    assert second.message == "killed by SIGKILL"


@pytest.mark.parametrize(("code", "phase"), [(Ending.FENCED, Phase.FENCED), (Ending.REFUSED, Phase.FAILED)])
def test_refused_jobs_are_not_restarted(
    job: Callable[..., Job], supervise: Callable[..., Supervisor], code: Ending, phase: Phase
) -> None:
    say = f"""
from weft.streams.pipeline.run.reporter import Reporter
Reporter.from_environment().update(message="lane 'a' was claimed by b")
raise SystemExit({int(code)})
"""
    status = until(supervise(job(say)), ended)
    assert (status.phase, status.restarts) == (phase, 0)
    assert status.message == "lane 'a' was claimed by b"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], Ending.DONE),
        ([0, Ending.FENCED], Ending.FENCED),
        ([Ending.FENCED, Ending.FENCED], Ending.FENCED),
        ([Ending.FENCED, Ending.REFUSED], Ending.FAILED),
        ([Ending.REFUSED, 0], Ending.FAILED),
    ],
)
def test_the_exit_code_distinguishes_fenced_from_failed(
    job: Callable[..., Job], codes: list[int], expected: Ending
) -> None:
    supervisor = Supervisor([job(ending(int(code)), f"job-{place}") for place, code in enumerate(codes)], QUICK)
    assert supervisor.run() == (expected is Ending.DONE)
    assert ending_of_all(supervisor.statuses) is expected


def test_stop_waits_for_jobs_to_finish(job: Callable[..., Job], supervise: Callable[..., Supervisor]) -> None:
    supervisor = supervise(job(SERVE))
    pid = until(supervisor, lambda s: s.report.doing == "running").pid
    (status,) = supervisor.stop()
    assert (status.phase, status.report.message) == (Phase.STOPPED, "bye")
    assert supervisor.succeeded
    assert gone(pid or 0)


def test_a_stop_signal_is_noticed_at_any_moment_of_a_wait() -> None:
    with subprocess.Popen([sys.executable, "-c", SIGNALLED], stdout=subprocess.PIPE, text=True) as process:
        try:
            lines, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0
    assert int(lines) > 3


def test_a_job_that_does_not_stop_is_killed_with_its_children(
    job: Callable[..., Job], supervise: Callable[..., Supervisor]
) -> None:
    stubborn = """
import signal, subprocess, sys, time
from weft.streams.pipeline.run.reporter import Reporter
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Reporter.from_environment().update(doing="running", rows=child.pid)
time.sleep(600)
"""
    supervisor = supervise(job(stubborn, stop_seconds=0.2))
    status = until(supervisor, lambda s: s.report.doing == "running")
    (stopped,) = supervisor.stop()
    assert (stopped.phase, stopped.message) == (Phase.STOPPED, "killed: it did not stop within 0.2 s")
    assert gone(status.pid or 0)
    assert gone(status.report.rows), "the grandchild"


def test_children_of_a_dead_job_do_not_outlive_it(
    job: Callable[..., Job], supervise: Callable[..., Supervisor]
) -> None:
    parent = """
import subprocess, sys
from weft.streams.pipeline.run.reporter import Reporter
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Reporter.from_environment().update(rows=child.pid)
"""
    status = until(supervise(job(parent)), ended)
    assert status.phase is Phase.DONE
    assert gone(status.report.rows)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_stops_everything(job: Callable[..., Job], number: int) -> None:
    supervisor = Supervisor([job(SERVE, "a"), job(SERVE, "b")], QUICK)
    sent: list[int] = []

    def send_once(statuses: tuple[JobStatus, ...]) -> None:
        if not sent and all(s.report.doing == "running" for s in statuses):
            sent.extend(s.pid or 0 for s in statuses)
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    assert supervisor.run(send_once)
    assert [s.phase for s in supervisor.statuses] == [Phase.STOPPED, Phase.STOPPED]
    assert all(gone(pid) for pid in sent)
    assert signal.getsignal(number) is before


def test_a_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from weft.streams.pipeline.run.supervisor import Job, Supervisor, ending_of_all
jobs = [Job(n, (sys.executable, "-c", {SERVE!r}), Path({str(tmp_path)!r}) / n) for n in ("a", "b")]
supervisor = Supervisor(jobs)
supervisor.start()
while not all(s.report.doing == "running" for s in supervisor.poll(0.1)): pass
print(*(s.pid for s in supervisor.statuses), flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        parent.kill()
    assert all(gone(pid) for pid in pids)


def test_services_end_when_the_other_jobs_have_ended(job: Callable[..., Job]) -> None:
    supervisor = Supervisor([job("pass"), job(SERVE, "service", background=True)], QUICK)
    assert supervisor.run()
    assert [s.phase for s in supervisor.statuses] == [Phase.DONE, Phase.STOPPED]


def test_a_command_that_does_not_exist_fails_alone(tmp_path: Path, job: Callable[..., Job]) -> None:
    supervisor = Supervisor([Job("x", ("/no/such/command",), tmp_path / "x.log"), job("pass")], QUICK)
    assert not supervisor.run()
    assert supervisor.statuses[0].phase is Phase.FAILED
    assert supervisor.statuses[0].message.startswith("cannot be started: ")
    assert supervisor.statuses[1].phase is Phase.DONE


def test_a_log_is_bounded(job: Callable[..., Job], supervise: Callable[..., Supervisor]) -> None:
    noisy = "for i in range(5000): print(f'line {i}')"
    log = until(supervise(job(noisy, log_bytes=10_000)), ended).log
    sizes = [file.stat().st_size for file in (log, log.with_name(log.name + ".1"))]
    assert max(sizes) <= 10_100
    assert "line 4999\n" in log.read_text() + log.with_name(log.name + ".1").read_text()


def test_a_supervisor_that_does_not_read_blocks_no_job(
    job: Callable[..., Job], supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    chatty = f"""
from pathlib import Path
from weft.streams.pipeline.run.reporter import Reporter
reporter = Reporter.from_environment()
for i in range(2000): reporter.update(rows=i, message="x" * 200)
Path({str(tmp_path / "through")!r}).touch()
"""
    supervisor = supervise(job(chatty))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (tmp_path / "through").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (tmp_path / "through").exists()
    assert until(supervisor, ended).report.rows > 0, "the reports that fitted into the pipe are complete"


def test_a_job_that_closes_its_pipes_early_is_still_watched(
    job: Callable[..., Job], supervise: Callable[..., Supervisor]
) -> None:
    closes = "import os, time; os.closerange(3, 100); time.sleep(0.3); os.close(1); os.close(2)"
    assert until(supervise(job(closes)), ended).phase is Phase.DONE


def test_invalid_reports_are_shown(job: Callable[..., Job], supervise: Callable[..., Supervisor]) -> None:
    garbled = "import os, time; os.write(int(os.environ['WEFT_STATUS_FD']), b'hello\\n'); time.sleep(600)"
    status = until(supervise(job(garbled)), lambda s: bool(s.message))
    assert status.message == "not a status report: b'hello'"


def test_names_must_differ(job: Callable[..., Job]) -> None:
    with pytest.raises(InvalidInput, match="names must differ"):
        Supervisor([job("pass"), job("pass")])


def test_reports_round_trip() -> None:
    report = Report("running", 5, 2.5, 3, 7, 11, 12, 0, 4, "häß\n")
    assert parse_report(encode_report(report)) == report
    long = parse_report(encode_report(Report(message="\x00" * 5000)))
    assert len(long.message) == 600
    assert long.message.endswith("...")
    full = Report("x" * 20, *[10**15] * 7, message="\x00" * 5000, waiting_for="\x00" * 500, waiting_since_ms=10**15)
    assert len(encode_report(full)) <= 4096
    for wrong in (b"", b"[]", json.dumps({"rowz": 1})):
        with pytest.raises(ValueError, match="not a status report"):
            parse_report(wrong)


def test_errors_by_whether_a_restart_may_help() -> None:
    assert ending_of(Fenced("x")) is Ending.FENCED
    assert ending_of(InvalidInput("x")) is Ending.REFUSED
    assert ending_of(Conflict("x")) is Ending.REFUSED
    assert ending_of(StoreUnavailable("x")) is Ending.UNAVAILABLE
    assert ending_of(CommitUnknown("x")) is Ending.UNAVAILABLE
    assert ending_of(SourceUnavailable("x")) is Ending.UNAVAILABLE
    assert ending_of(StoreRefused("x")) is Ending.FAILED, "a server that refuses access is not waited for"
    assert ending_of(SourceRefused("x")) is Ending.FAILED
    assert ending_of(OSError("x")) is Ending.FAILED
