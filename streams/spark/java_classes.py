"""Classes of weft in Java: Spark's own compiler compiles them, and executors get them as a jar.

They exist where Spark requires a Java class on executors, or where Python would be too slow or wrong: columns of tasks
(`weft.streams.read.relation.columnar_tasks`), and JSON (`weft.streams.formats.json_reader`). Spark includes the
compiler (Janino) that it uses for its generated code, so no JDK is needed, and a class is always compiled against the
version of Spark that runs it.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

__all__ = ["CannotCompile", "new_object", "source_of"]

_constructors: weakref.WeakKeyDictionary[SparkContext, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Constructor of each class, by context; a `CannotCompile` if the class does not compile with this version of Spark."""
_compiling: Final = threading.Lock()


class CannotCompile(Exception):
    """A class does not compile, because this version of Spark has other classes than the source uses."""


def new_object(context: SparkContext, package: str, name: str, *arguments: Any) -> Any:
    """Create a JVM object of the class ``weft.NAME``, whose source is ``NAME.java`` in a Python package.

    The first call for a context compiles the class and adds it to the jars that each executor loads before its next
    task.

    Args:
        context: The context whose executors use the object.
        package: The Python package.
        name: Name of the class, which must have exactly one constructor.
        arguments: Arguments of the constructor.

    Raises:
        CannotCompile: This version of Spark has other classes than those that the source uses.
    """
    with _compiling:
        constructors = _constructors.setdefault(context, {})
        if name not in constructors:
            constructors[name] = _compile(context, package, name)
        constructor = constructors[name]
    if isinstance(constructor, CannotCompile):
        raise constructor
    java_arguments = context._gateway.new_array(context._jvm.Object, len(arguments))  # type: ignore[union-attr]  # noqa: SLF001 - no public way to the JVM
    for place, argument in enumerate(arguments):
        java_arguments[place] = argument
    return constructor.newInstance(java_arguments)


def source_of(package: str, name: str) -> str:
    """Read the source of the class ``weft.NAME``; weft may be in an archive (`spark-submit --py-files`)."""
    return (files(package) / f"{name}.java").read_text(encoding="utf-8")


def _compile(context: SparkContext, package: str, name: str) -> Any:
    """Compile a class so that executors can load it; return its constructor, or a `CannotCompile`."""
    jvm: Any = context._jvm  # noqa: SLF001 - as above
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
        compiler.cook(source_of(package, name))
    except (Py4JError, TypeError) as error:  # a class that does not exist is a TypeError
        return CannotCompile(f"Spark {context.version} has other classes than Spark 4.3: {error}")
    # Executors load the jar while the context lives; its folder for temporary files lives as long.
    folder = tempfile.mkdtemp(prefix="weft-", dir=context._temp_dir)  # noqa: SLF001 - no public name
    path = Path(folder, f"weft.{name}.jar")
    with zipfile.ZipFile(path, "w") as jar:
        for compiled, code in compiler.getBytecodes().items():
            jar.writestr(f"{compiled.replace('.', '/')}.class", bytes(code))
    context._jsc.sc().addJar(str(path))  # noqa: SLF001 - PySpark has no method for it
    (constructor,) = compiler.getClassLoader().loadClass(f"weft.{name}").getConstructors()
    return constructor
