"""``weft ui`` as a process, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_process import end_process
from tests.storage.support.shop import SHOP, append, orders
from tests.streams.support.pipelines import weft
from weft import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1))
    return table


@contextmanager
def running(
    uri: str, *options: str, environment: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it prints."""
    command = [sys.executable, "-m", "weft.streams.cli.main", "ui", uri, "--port", "0", *options]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **dict(environment)}, start_new_session=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield process, found.group()
    finally:
        end_process(process, signal.SIGKILL)
        process.stderr.close()


def get(address: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(), urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def end_while_followed(process: subprocess.Popen[str], address: str) -> None:
    """Interrupt the server while somebody follows the table: it ends in order, and says nothing."""
    with urllib.request.urlopen(f"{address}events", timeout=120) as followed:
        assert followed.readline() == b"retry: 2000\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_it_serves_until_it_is_stopped(table: Table) -> None:
    with running(table.uri) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        status, text = get(address)
        assert status == 200
        assert "Overview" in text
        end_while_followed(process, address)


def test_the_printed_address_has_the_token(table: Table) -> None:
    with running(table.uri, "--token", environment=[("WEFT_UI_TOKEN", "a-token-of-the-environment")]) as (_, address):
        assert address.endswith("/?token=a-token-of-the-environment")
        assert get(address)[0] == 200
        assert get(address.partition("?")[0])[0] == 401


def test_a_taken_port_is_named(table: Table) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = weft("ui", table.uri, "--port", str(port))
    assert result.exit_code == 1
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in result.stderr
    assert "--port" in result.stderr


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.7"])
def test_an_address_of_another_machine_is_refused(table: Table, host: str) -> None:
    result = weft("ui", table.uri, "--port", "0", "--host", host)
    assert result.exit_code == 1
    assert host in result.stderr


def test_an_unknown_table_and_a_missing_file_are_named(tmp_path: Path) -> None:
    result = weft("ui", tmp_path / "none")
    assert result.exit_code == 1
    assert "there is no table at" in result.stderr
    assert weft("ui", tmp_path / "none.yaml").exit_code == 2


def test_a_folder_of_tables_has_a_start_page(tmp_path: Path) -> None:
    Table.create(tmp_path / "lake/shop/wide", SHOP)
    Table.create(tmp_path / "lake/plain", SHOP)
    with running(str(tmp_path / "lake")) as (process, address):
        status, text = get(address)
        assert status == 200
        assert 'href="/tables/plain/"' in text
        assert "Overview" in get(f"{address}tables/shop/wide/")[1]
        end_while_followed(process, address)


def test_a_folder_without_tables_is_refused_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "lake/shop").mkdir(parents=True)
    result = weft("ui", tmp_path / "lake")
    assert result.exit_code == 1
    assert f"there is no table in {tmp_path / 'lake'}, nor in the folders there" in result.stderr
    assert "hint: give tables, folders of tables or pipeline files" in result.stderr


def test_one_of_several_tables_that_is_missing_is_named(table: Table, tmp_path: Path) -> None:
    result = weft("ui", table.uri, tmp_path / "none")
    assert result.exit_code == 1
    assert f"there is no table at file://{tmp_path}/none" in result.stderr


def test_a_missing_extra_is_named(table: Table, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "starlette.py").write_text("raise ModuleNotFoundError('gone', name='starlette')")
    done = subprocess.run(
        [sys.executable, "-m", "weft.streams.cli.main", "ui", table.uri],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(hidden), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "weft ui needs the package starlette" in done.stderr
    assert "pip install 'weft[ui]'" in done.stderr
