"""Random statements in the session of the SQL box: ``python -m tests.streams.ui.fuzz_sql_box``.

Whatever the statement, nothing may happen besides an answer from the table. Each statement is followed by a look at:

    files       a folder whose files the statements name: nobody opens, makes or changes anything there
    network     a server whose addresses they name: nobody connects
    table       the objects of the table
    session     settings, views, functions, variables, jars, cached data, the current place, properties of Java
    secret      a value of the environment that is not in an answer

It prints, as JSON, the statements after which something had happened, how many were answered and refused, which forms
of Spark's grammar `tests.streams.ui.sql_statements` lacks, and the functions of the session. With ``--without`` a part
of the check is left out, which must be seen.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.ui.sql_statements import STATEMENTS, Statements
from weft import Table
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.table_session import table_session
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.read import read_only
from weft.streams.read.read_only import ReadOnlyQueries
from weft.streams.read.sql_query import SqlSession

SECRET: Final = "a-secret-of-the-environment"
_ROWS: Final = 20
_EVENTS: Final = 0x3FF | 0x20  # opened, read, written, made, deleted, moved, and their attributes changed
_ARGUMENTS: Final = (
    "'{url}/data.txt'",
    "'{path}/data.txt'",
    "'<!DOCTYPE a SYSTEM \"{url}/data.dtd\"><a/>', 'a'",
    "'{path}/data.txt', '{url}/data.txt'",
    "'1', '{path}/data.txt', map('path', '{path}/data.txt', 'url', '{url}/data.txt')",
)
"""Arguments with which each function is called: texts that a function might take for places."""
_IN_SCRIPTS: Final = {
    "SingleStatement",
    "CloseCursorStatement",
    "DeclareCursorStatement",
    "DeclareHandlerStatement",
    "FetchCursorStatement",
    "OpenCursorStatement",
}


class WatchedFolder:
    """Files that nobody may open; tells who did, by inotify."""

    def __init__(self, path: Path) -> None:
        """Make the files, and watch the folder."""
        self.path = path
        for name in ("txt", "text", "csv", "json", "parquet", "orc", "xml", "binaryFile", "weft", "jar", "xsd", "sh"):
            (path / f"data.{name}").write_text(f"{SECRET}\n", encoding="utf-8")
        (path / "run.sh").write_text("echo x\n", encoding="utf-8")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _EVENTS) >= 0

    def events(self) -> list[str]:
        """Names of the files with which something happened since the last call."""
        names = []
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return names
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            names.append(f"{data[16 : 16 + length].rstrip(bytes(1)).decode() or '.'} {mask:#x}")
            data = data[16 + length :]
        return names


@contextmanager
def watched_server() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the list of what was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815 - a name of the standard library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


class SessionState:
    """What a session has that a statement could change."""

    def __init__(self, session: SqlSession) -> None:
        self._spark = session._spark
        self._session: Any = session._spark._jsparkSession
        self._jvm: Any = session._spark._jvm

    def now(self) -> dict[str, str]:
        """Each part as a text."""
        state = self._session.sessionState()
        catalog, manager = state.catalog(), state.catalogManager()
        stored, functions = catalog.externalCatalog(), (state.functionRegistry(), state.tableFunctionRegistry())
        context = self._spark.sparkContext._jsc.sc()
        databases = stored.listDatabases()
        names = [databases.apply(index) for index in range(databases.size())]
        return {
            "setting": state.conf().settings().toString(),
            "view": f"{catalog.listLocalTempViews('*')} {catalog.globalTempViewManager().listViewNames('*')}",
            "function": str([registry.listFunction().size() for registry in functions]),
            "stored": " ".join(f"{name} {stored.listTables(name)} {stored.listFunctions(name, '*')}" for name in names),
            "variable": str(manager.tempVariableManager().isEmpty()),
            "place": f"{manager.currentCatalog().name()} {list(manager.currentNamespace())}",
            "jar": f"{context.listJars()} {context.listFiles()} {context.listArchives()}",
            "cached": str(self._session.sharedState().cacheManager().isEmpty()),
            "property": str(self._jvm.java.lang.System.getProperty("weft.fuzz")),
        }


class Fuzzer:
    """Runs statements, and notes after which of them something has happened."""

    def __init__(self, session: SqlSession, table: Path, folder: WatchedFolder, asked: list[str]) -> None:
        self._session, self._table, self._folder, self._asked = session, table, folder, asked
        self._state = SessionState(session)
        self.answered, self.refused = 0, 0
        self.problems: list[dict[str, str]] = []
        self._run("SELECT * FROM t")  # what the first query of a session loads is not of a statement
        self._folder.events()
        self._before = self._looked()

    def run(self, sql: str) -> None:
        """Run a statement, and look."""
        answer = self._run(sql)
        after = self._looked()
        happened = {name: text for name, text in after.items() if text != self._before[name]}
        happened |= {"files": str(events)} if (events := self._folder.events()) else {}
        happened |= {"network": str(self._asked)} if self._asked else {}
        happened |= {"secret": answer[:200]} if SECRET in answer else {}
        self._asked.clear()
        self._before = after
        for name, text in happened.items():
            self.problems.append({"sql": sql, "what": name, "now": text[:500]})
            sys.stderr.write(f"{self.problems[-1]}\n")  # seen also if the run is ended

    def _run(self, sql: str) -> str:
        try:
            with self._session.query(sql) as query:
                answer = str(query.arrow(_ROWS).to_pylist()) if query.frame.columns else ""
            self.answered += 1
        except Exception as error:
            answer = str(error).replace(sql, "")
            self.refused += 1
        return answer

    def _looked(self) -> dict[str, str]:
        objects = sorted((str(path), path.stat().st_mtime_ns) for path in self._table.rglob("*") if path.is_file())
        return {"table": str(objects), **self._state.now()}


def missing_forms(session: SqlSession) -> list[str]:
    """Alternatives of ``statement`` in the grammar of this Spark that `STATEMENTS` lacks."""
    jvm: Any = session._spark._jvm
    load = jvm.org.apache.spark.util.Utils.classForName
    parser = "org.apache.spark.sql.catalyst.parser.SqlBaseParser"
    kind = load(f"{parser}$StatementContext", True, False)
    names = {
        str(each.getSimpleName()).removesuffix("Context")
        for each in load(parser, True, False).getDeclaredClasses()
        if kind.isAssignableFrom(each) and not each.equals(kind)
    }
    return sorted(names - STATEMENTS.keys() - _IN_SCRIPTS)


def function_names(session: SqlSession) -> list[str]:
    """Functions of the session that are Spark's."""
    state = session._spark._jsparkSession.sessionState()
    lists = [registry.listFunction() for registry in (state.functionRegistry(), state.tableFunctionRegistry())]
    names = {str(each.apply(index).funcName()) for each in lists for index in range(each.size())}
    return sorted(name for name in names if not name.startswith("weft_"))


def _no_check(queries: ReadOnlyQueries) -> None:
    queries._check = lambda _: None  # type: ignore[method-assign]


def _no_parsed_check(queries: ReadOnlyQueries) -> None:
    check = queries._check
    queries._check = lambda plan: check(plan) if plan.analyzed() else None  # type: ignore[method-assign]


def _no_strategy(queries: ReadOnlyQueries) -> None:
    toSeq = queries._jvm.org.apache.spark.api.python.PythonUtils.toSeq  # noqa: N806 - Java's name
    getattr(queries._session.experimental(), "extraStrategies_$eq")(toSeq([]))


WITHOUT: Final[Mapping[str, Callable[[ReadOnlyQueries], None]]] = {
    "checks": _no_check,  # of what is parsed, and of what is analysed
    "parsed": _no_parsed_check,
    "strategy": _no_strategy,
}


@contextmanager
def weakened_session(settings: CommandSettings, without: list[str]) -> Iterator[SqlSession]:
    """The session of the box without parts of what keeps it read-only."""
    if "catalog" in without:
        CatalogJvm.replace_session_catalog = lambda *_: None  # type: ignore[method-assign]
    if "functions" in without:
        read_only.FUNCTIONS = frozenset()  # type: ignore[misc]
    if "settings" in without:
        read_only.READ_ONLY.clear()  # type: ignore[attr-defined]
    with table_session(settings) as session:
        assert session._read_only is not None
        for name in without:
            WITHOUT.get(name, lambda _: None)(session._read_only)
        yield session


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--statements", type=int, default=300, help="random ones, after one of each form")
    parser.add_argument("--calls", action="store_true", help="call each function of Spark, too")
    parser.add_argument("--without", nargs="*", default=[], choices=[*WITHOUT, "catalog", "functions", "settings"])
    options = parser.parse_args()
    os.environ["WEFT_FUZZ_SECRET"] = SECRET
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as scratch, watched_server() as (url, asked):
        table = Table.create(Path(scratch, "wide"), SHOP)
        append(table, orders(1, 2, 3))
        table.savepoint("before")
        append(table, orders(4))
        path = Path(scratch, "watched")
        path.mkdir()
        statements = Statements(options.seed, str(path), url)
        settings = CommandSettings(table=TableLocation(table.uri, {}))
        with weakened_session(settings, options.without) as session:
            fuzzer = Fuzzer(session, Path(scratch, "wide"), WatchedFolder(path), asked)
            for statement in statements.every():
                fuzzer.run(statement)
            for name in function_names(session) if options.calls else ():
                for arguments in _ARGUMENTS:
                    fuzzer.run(f"SELECT `{name}`({arguments.format(path=path, url=url)}) AS a")
            for _ in range(options.statements):
                fuzzer.run(statements.next())
            json.dump(
                {
                    "problems": fuzzer.problems,
                    "answered": fuzzer.answered,
                    "refused": fuzzer.refused,
                    "missing": missing_forms(session),
                    "functions": function_names(session),
                },
                sys.stdout,
            )


if __name__ == "__main__":
    main()
