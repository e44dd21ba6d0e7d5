"""Queries alone: what a session for people who may only read refuses.

Spark parses the text, so comments, quoting and the order of clauses do not matter. Refused are commands (but those
that describe and show), inserts, scripts, statements in texts, and programs (``SELECT TRANSFORM``). EXPLAIN of these is
refused, too, because Spark executes a statement in a text to explain it. The functions that call Java methods are
removed from the session. `READ_ONLY` forbids files as tables, and variables: ``'${env:AWS_SECRET_ACCESS_KEY}'`` would
be the value of that one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from storage.errors import InvalidInput

READ_ONLY: Final[Mapping[str, str]] = {
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}
"""Settings of a session for queries alone."""

_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"
_REFUSED: Final = tuple(
    f"{_PLANS}.{name}" for name in ("Command", "ParsedStatement", "CompoundPlanStatement", "ExecutableDuringAnalysis")
)
_REFUSED_NAMES: Final = ("InsertInto", "ExecuteImmediate", "ScriptTransformation", "CompoundBody")
_SHOWS: Final = frozenset(
    {
        "DescribeColumn",
        "DescribeRelation",
        "ShowCatalogsCommand",
        "ShowColumns",
        "ShowCreateTable",
        "ShowFunctions",
        "ShowNamespaces",
        "ShowNamespacesCommand",
        "ShowTableProperties",
        "ShowTables",
        "ShowTablesCommand",
        "ShowViews",
    }
)
_EXPLAINS: Final[Mapping[str, str]] = {"ExplainCommand": "logicalPlan", "DescribeQueryCommand": "plan"}
"""Commands about another statement, and where it is."""
_CALLS: Final = ("java_method", "reflect", "try_reflect")


def forbid_calls(spark: SparkSession) -> None:
    """Remove the functions that call any method of a Java class from a session."""
    session: Any = spark._jsparkSession  # noqa: SLF001 - Spark has no other way
    registry = session.sessionState().functionRegistry()
    functions = registry.listFunction()
    known = (functions.apply(number) for number in range(functions.size()))
    for function in [each for each in known if each.funcName() in _CALLS]:
        registry.dropFunction(function)


def check_read_only(spark: SparkSession, sql: str, procedures: Collection[str] = ()) -> None:
    """Check that a text is a query.

    Args:
        spark: The session.
        sql: The text.
        procedures: Names of procedures that may be called.

    Raises:
        InvalidInput: It is another statement.
        pyspark.errors.ParseException: It is no SQL.
    """
    session: Any = spark._jsparkSession  # noqa: SLF001 - Spark has no other way
    plan = session.sessionState().sqlParser().parsePlan(sql)
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to its classes
    refused = [jvm.org.apache.spark.util.Utils.classForName(name, True, False) for name in _REFUSED]
    while (inner := _EXPLAINS.get(plan.getClass().getSimpleName())) is not None:
        plan = getattr(plan, inner)()
    if plan.getClass().getSimpleName() in _SHOWS:
        return
    for node in _nodes(plan):
        name = node.getClass().getSimpleName()
        if name == "Call" and _procedure(node) in procedures:
            continue
        if any(kind.isInstance(node) for kind in refused) or any(part in name for part in _REFUSED_NAMES):
            raise InvalidInput(
                f"only queries are allowed here, and this is {_words(name)}",
                hint="SELECT, WITH, VALUES, SHOW, DESCRIBE or EXPLAIN"
                + (f", and CALL of {', '.join(sorted(procedures))}" if procedures else "")
                + "; for others: weft sql",
            )


def _procedure(call: Any) -> str:
    """Name of the procedure of a CALL, without its namespace."""
    names = call.procedure().nameParts()
    return str(names.apply(names.size() - 1)).lower()


def _nodes(plan: Any) -> Iterator[Any]:
    """A plan and its parts, those of subqueries in common table expressions included."""
    yield plan
    for parts in (plan.children(), plan.innerChildren()):
        for number in range(parts.size()):
            yield from _nodes(parts.apply(number))


def _words(name: str) -> str:
    """The name of a class as words: ``InsertIntoStatement`` is an insert into statement."""
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return f"an {spaced}" if spaced[:1] in "aeiou" else f"a {spaced}"
