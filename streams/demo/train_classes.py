"""Creates the archive of Spark's classes (`weft.streams.spark.class_archive`).

A JVM that runs a writer of the demo writes the classes that it has loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from weft.storage.errors import StoreUnavailable
from weft.streams.demo import shop
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.demo.feed import Feed
from weft.streams.demo.workload import MIN_ROWS, plan_topics
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.run import open_table, writer_job
from weft.streams.spark.class_archive import CACHE, archive_path
from weft.streams.spark.session import check_java
from weft.streams.spark.settings import MAKE_ARCHIVE

WRITER: Final = "orders"
LIMIT_SECONDS: Final = 1_800.0  # two idle cores take half a minute, including the writing of the archive
_OUTPUT_CHARS: Final = 2_000


def make_class_archive() -> Path:
    """Create or replace the archive for the installed versions of Java and Spark.

    Writers may start meanwhile; they use the archive when it is complete.

    Returns:
        Path of the archive.

    Raises:
        NotFound: Java is not installed, or there is no folder for caches.
        StoreUnavailable: The folder cannot be written to, or the JVM has not written the archive.
    """
    target = archive_path(check_java())
    hint = f"set {CACHE} to a folder that can be written to"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as folder:
            archive = Path(folder, "classes.jsa")
            output = _run_writer(Path(folder), archive)
            if not archive.is_file():
                raise StoreUnavailable(f"the JVM has not written {archive}: {output[-_OUTPUT_CHARS:]}", hint=hint)
            archive.chmod(0o644)
            archive.replace(target)
    except OSError as error:
        raise StoreUnavailable(f"{target} cannot be written: {error}", hint=hint) from error
    return target


def _run_writer(folder: Path, archive: Path) -> str:
    """Run a writer once; its JVM writes the archive when it ends. Returns the output of both."""
    with EmbeddedBroker() as broker:
        feed = Feed(broker, plan_topics(MIN_ROWS))
        while not feed.finished:
            feed.send_part()
        options = f"'{MAKE_ARCHIVE}{archive}'"  # within double quotes of YAML
        path = shop.write_pipeline(folder, broker.bootstrap_servers, java_options=options)
        pipeline = load_pipeline(path)
        open_table(pipeline)
        # There is no supervisor, which would kill the JVM while it writes the archive. The JVM writes its output to the
        # same pipe, so this waits until it has ended, too.
        try:
            result = subprocess.run(  # noqa: S603 - our own command
                writer_job(pipeline, WRITER, once=True).argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_SECONDS,
                check=False,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except subprocess.TimeoutExpired as error:
            sys.stderr.write(f"the writer did not end within {LIMIT_SECONDS:.0f} s\n")
            return (error.stdout or b"").decode(errors="replace")
    return result.stdout.decode(errors="replace")
