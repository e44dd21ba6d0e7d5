"""Restricts a session to queries, for users who may only read.

Only the plan nodes listed here are allowed; everything else that a version of Spark has is refused. The text of a query
passes these checks:

1. **After parsing.** Spark runs some statements while it analyses them: CALL, EXECUTE IMMEDIATE, scripts, subqueries of
   AS OF. So only nodes of the list are analysed. A name that hides the kind of its statement, as in
   ``CREATE TABLE IDENTIFIER('a' || 'b')``, is refused.
2. **After analysis.** Every node, also in subqueries and views, is on the list; every table and every catalog is an
   object of weft; no function is defined by a user. The analysed plan is run, not the text again, which might mean
   something else by then.
3. **While planning.** The first strategy of the planner checks every plan that Spark executes in the session, for
   whatever reason.

The session also lacks features that a reader does not need: functions that call Java or open files (`FUNCTIONS`), files
as tables, Hive, and the substitution of variables: ``'${env:AWS_SECRET_ACCESS_KEY}'`` would be the value of that
variable. `weft.streams.catalog.table_session` removes Spark's own catalog, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from weft.storage.errors import InvalidInput
from weft.streams.spark.java_classes import CannotCompile, new_object

READ_ONLY: Final[Mapping[str, str]] = {
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}
"""Settings of a session that is restricted to queries."""

FUNCTIONS: Final = frozenset(
    (
        # Call any method of a Java class.
        *("java_method", "reflect", "try_reflect"),
        # Read a file or a URL that an option names, or load a class: rowValidationXSDPath, avroSchemaUrl, a descriptor.
        *("from_xml", "schema_of_xml", "from_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),
        # Open the URLs in a document: <!DOCTYPE a SYSTEM "http://...">.
        *("xpath", "xpath_boolean", "xpath_double", "xpath_float", "xpath_int", "xpath_long", "xpath_number"),
        *("xpath_short", "xpath_string"),
        # Shows what other queries have logged.
        "python_worker_logs",
    )
)
"""Functions of Spark that are removed from a session that is restricted to queries."""

_SPARK: Final = "org.apache.spark.sql."
_NODES: Final[Mapping[str, str]] = {
    # Queries, in the forms that the parser, the analyser and the optimiser give them.
    "catalyst.plans.logical": """
        Aggregate AsOfJoin BinBy CTERelationDef CTERelationRef Deduplicate Distinct EmptyRelation Except Expand Filter
        Generate GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit LocalRelation NearestByJoin Offset
        OneRowRelation Pivot Project Range RebalancePartitions Repartition RepartitionByExpression ResolvedHint
        ReturnAnswer Sample Sort Subquery SubqueryAlias Tail Transpose Union UnionLoop UnionLoopRef UnresolvedBinBy
        UnresolvedHint UnresolvedWith Unpivot View Window WindowGroupLimit WithCTE WithWindowDefinition

        Call CommandResult DescribeColumn DescribeFunction DescribeNamespace DescribeRelation ShowColumns
        ShowCreateTable ShowFunctions ShowNamespaces ShowPartitions ShowTableProperties ShowTables ShowTablesExtended
        ShowViews""",
    "catalyst.analysis": """
        CurrentNamespace$ RelationChanges RelationTimeTravel ResolvedInlineTable ResolvedNamespace ResolvedProcedure
        ResolvedTable UnresolvedFunctionName UnresolvedHaving UnresolvedInlineTable UnresolvedNamespace
        UnresolvedProcedure UnresolvedQualify UnresolvedRelation UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
        UnresolvedTable UnresolvedTableOrView UnresolvedTableValuedFunction UnresolvedTranspose""",
    "catalyst.expressions": "PipeOperator",
    # Statements other than queries; EXPLAIN and DESCRIBE QUERY contain another statement, which is checked, too.
    "execution.command": """
        DescribeFunctionCommand DescribeProcedureCommand DescribeQueryCommand ExplainCommand ShowCatalogsCommand
        ShowCurrentNamespaceCommand ShowNamespacesCommand ShowProceduresCommand""",
    "execution.datasources.v2": "DataSourceV2Relation DataSourceV2ScanRelation",
    # Nodes that Spark makes: the rows of a stage that has ended, and rows that weft passes in the driver.
    "execution.adaptive": "LogicalQueryStage",
    "execution": "LogicalRDD",
}
"""Names of the classes of allowed nodes, by package."""
_EXPLAINS: Final[Mapping[str, str]] = {"ExplainCommand": "logicalPlan", "DescribeQueryCommand": "plan"}
"""Commands that contain another statement, and the field with its plan."""


class ReadOnlyQueries:
    """Restricts a session to queries, and analyses them."""

    def __init__(self, spark: SparkSession, procedures: Collection[str] = ()) -> None:
        """Restrict a session.

        Args:
            spark: The session; it was started with the settings `READ_ONLY`, and is not used for anything else.
            procedures: Names of procedures that may be called.

        Raises:
            InvalidInput: This version of Spark lacks a class that the check needs.
        """
        self._spark = spark
        self._session: Any = spark._jsparkSession  # noqa: SLF001 - Spark has no other way
        self._jvm = cast("Any", spark._jvm)  # noqa: SLF001 - the only way to its classes
        self._procedures = procedures
        self._plans = self._new_plans()
        self._remove_functions()
        strategies = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq([self._plans])
        getattr(self._session.experimental(), "extraStrategies_$eq")(strategies)

    def query(self, sql: str) -> DataFrame:
        """Analyse a query.

        Raises:
            InvalidInput: The statement is not a query.
            pyspark.errors.ParseException: The text is not SQL.
            pyspark.errors.AnalysisException: A table or column does not exist, or the query is otherwise invalid.
        """
        plan = self._session.sessionState().sqlParser().parsePlan(sql)
        self._check(plan)
        analysed = self._analyse(plan)
        self._check(analysed)
        for inner in _explained_plans(plan):
            self._check(self._analyse(inner))
        dataset = getattr(self._jvm.org.apache.spark.sql.classic, "Dataset$")
        return DataFrame(getattr(dataset, "MODULE$").ofRows(self._session, analysed), self._spark)

    def _analyse(self, plan: Any) -> Any:
        """Analyse a plan that has passed `_check`. Commands are not run, except CALL, which Spark runs here."""
        mode = self._jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        return self._session.sessionState().executePlan(plan, mode).analyzed()

    def _check(self, plan: Any) -> None:
        part = self._plans.refused(plan)
        if part is not None:
            raise InvalidInput(
                f"only queries are allowed here, and this is {_words(part)}",
                hint="use SELECT, WITH, VALUES, SHOW, DESCRIBE or EXPLAIN"
                + (f", and CALL of {', '.join(sorted(self._procedures))}" if self._procedures else "")
                + "; run other statements with weft sql",
            )

    def _new_plans(self) -> Any:
        """Create the JVM object that checks plans."""
        nodes = [f"{_SPARK}{package}.{name}" for package, names in _NODES.items() for name in names.split()]
        try:
            names = (" ".join(words) for words in (nodes, FUNCTIONS, self._procedures))
            return new_object(self._spark.sparkContext, __package__, "ReadOnlyPlans", *names)
        except (CannotCompile, Py4JError) as error:
            raise InvalidInput(
                f"queries cannot be checked: Spark {self._spark.version} has other classes: {error}",
                hint="use the version of Spark that weft is installed with",
            ) from error

    def _remove_functions(self) -> None:
        state = self._session.sessionState()
        for registry in (state.functionRegistry(), state.tableFunctionRegistry()):
            functions = registry.listFunction()
            registered = [functions.apply(number) for number in range(functions.size())]
            for function in [identifier for identifier in registered if identifier.funcName() in FUNCTIONS]:
                registry.dropFunction(function)


def _explained_plans(plan: Any) -> Iterator[Any]:
    """Yield the plans of the statements that a statement contains."""
    while (inner := _EXPLAINS.get(plan.getClass().getSimpleName())) is not None:
        plan = getattr(plan, inner)()
        yield plan


def _words(part: Any) -> str:
    """Describe a node of a plan: ``InsertIntoStatement`` is "an insert into statement"."""
    match name := str(part.getClass().getSimpleName()):
        case "UnresolvedFunction":
            return f"a call of {part.nameParts().last()}, which calls programs or opens files"
        case "UnresolvedProcedure":
            return f"a call of {part.nameParts().last()}"
        case "PlanWithUnresolvedIdentifier":
            return "a statement about a computed name: write the name itself"
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return f"an {spaced}" if spaced[:1] in "aeiou" else f"a {spaced}"
