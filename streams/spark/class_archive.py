"""The archive of Spark's classes, with which JVMs start faster (class-data sharing).

A JVM that starts Spark and a streaming query reads some 20,000 classes from jars, verifies and prepares them. An
archive contains the prepared classes. The JVM maps it into memory, so all writers of a machine share most of its pages,
and only the used part is read. That needs a JVM option which maps the archive at its original address
(`weft.streams.spark.settings`).

`weft class-archive` creates the archive once for a machine or an image (`weft.streams.demo.train_classes`). A session
uses it if it exists. The name of the file depends on everything that the JVM compares when it maps an archive: the
version of Java, and the jars of Spark with their sizes and times. So an archive that no longer fits is not used, and
the next one is another file. The JVM compares these, too, and ignores an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from weft.storage.errors import NotFound

CACHE: Final = "WEFT_CACHE"
"""Environment variable with the folder of the archive. The default is ``weft`` in the user's cache folder."""


def find_archive(java_version: str) -> Path | None:
    """Return the archive for a version of Java; None if it does not exist. See `archive_path`."""
    try:
        path = archive_path(java_version)
    except NotFound:
        return None
    return path if os.access(path, os.R_OK) else None


def archive_path(java_version: str) -> Path:
    """Return the path of the archive for a version of Java and the jars of Spark, also if it does not exist.

    Args:
        java_version: Output of ``java -version``.

    Raises:
        NotFound: The user has no home folder.
    """
    digest = hashlib.sha256(java_version.encode())
    for jar in sorted(_jars().glob("*.jar")):
        facts = jar.stat()
        # In seconds, as the JVM compares: layers of images do not store more.
        digest.update(f"{jar} {facts.st_size} {int(facts.st_mtime)}\n".encode())
    return _folder() / f"spark-classes-{digest.hexdigest()[:16]}.jsa"


def _folder() -> Path:
    if cache_folder := os.environ.get(CACHE):
        return Path(cache_folder)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "weft"
    try:
        return Path.home() / ".cache" / "weft"
    except RuntimeError as error:  # a container may run as a user that the system does not know
        raise NotFound(f"there is no folder for caches: {error}", hint=f"set {CACHE}") from None


def _jars() -> Path:
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "jars"
    import pyspark

    return Path(pyspark.__path__[0]) / "jars"
