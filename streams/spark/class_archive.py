"""The archive of Spark's classes from which JVMs start with less work (class-data sharing).

A JVM that starts Spark and a streaming query reads some 20,000 classes from jars, checks and prepares them. An archive
holds them prepared. The JVM maps it into memory, so all writers of a machine share most of its pages, and it is read
as far as it is used. That needs the option of the JVM which maps it where it was made for
(`weft.streams.spark.settings`).

`weft class-archive` makes it once for a machine or an image (`weft.streams.demo.train_classes`). A session uses it if
it is there, and starts without it as before. The name of the file depends on everything that the JVM compares when it
maps an
archive: the version of Java and the jars of Spark, with their sizes and times. So an archive that does not fit any more
is not used, and the next one is another file. The JVM compares as well, and ignores an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from weft.storage.errors import NotFound

CACHE: Final = "WEFT_CACHE"
"""Environment variable: the folder of the archive. The default is ``weft`` in the user's folder for caches."""


def find_archive(java_version: str) -> Path | None:
    """The archive for a Java, if it was made; see `archive_path`."""
    try:
        path = archive_path(java_version)
    except NotFound:
        return None
    return path if os.access(path, os.R_OK) else None


def archive_path(java_version: str) -> Path:
    """Where the archive is, or would be, for a Java and the jars of Spark.

    Args:
        java_version: What ``java -version`` prints.

    Raises:
        NotFound: The user has no home folder.
    """
    digest = hashlib.sha256(java_version.encode())
    for jar in sorted(_jars().glob("*.jar")):
        facts = jar.stat()
        # Seconds, as the JVM compares: layers of images do not keep more.
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
