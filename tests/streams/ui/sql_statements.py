"""Random statements of Spark SQL: a grammar of all its forms, of which most must not run for somebody who only reads.

A form is a text with slots, ``{name}``; a slot is replaced by a random form of its own. Names of the forms are those of
the alternatives of ``statement`` in Spark's grammar, so that a test can ask the running Spark whether one is missing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_DEPTH: Final = 5
"""Slots within slots; below it a slot has its first form, which has none."""

STATEMENTS: Final[Mapping[str, Sequence[str]]] = {
    "StatementDefault": ("{query}", "{query}", "{query}", "{query}"),
    "VisitExecuteImmediate": ("EXECUTE IMMEDIATE {quoted}", "EXECUTE IMMEDIATE {quoted} INTO x"),
    "DmlStatement": (
        "INSERT INTO {name} {query}",
        "INSERT OVERWRITE TABLE {name} {query}",
        "INSERT INTO {name} REPLACE WHERE true {query}",
        "INSERT OVERWRITE DIRECTORY '{path}/out' USING {format} {query}",
        "INSERT OVERWRITE LOCAL DIRECTORY '{path}/out' ROW FORMAT DELIMITED {query}",
        "WITH w AS ({query}) INSERT INTO {name} SELECT * FROM w",
        "FROM t INSERT INTO {name} SELECT id INSERT INTO {name} SELECT status",
        "DELETE FROM {name} WHERE true",
        "WITH w AS ({query}) DELETE FROM {name}",
        "UPDATE {name} SET status = 'x'",
        "MERGE INTO {name} a USING t b ON a.id = b.id WHEN MATCHED THEN DELETE",
    ),
    "Use": ("USE {name}",),
    "UseNamespace": ("USE DATABASE {name}",),
    "SetCatalog": ("SET CATALOG spark_catalog", "SET CATALOG {computed}"),
    "CreateNamespace": ("CREATE DATABASE {new}", "CREATE SCHEMA IF NOT EXISTS {new} LOCATION '{path}/out'"),
    "SetNamespaceProperties": ("ALTER DATABASE {namespace} SET DBPROPERTIES ('a' = 'b')",),
    "UnsetNamespaceProperties": ("ALTER DATABASE {namespace} UNSET DBPROPERTIES ('a')",),
    "SetNamespaceCollation": ("ALTER DATABASE {namespace} DEFAULT COLLATION UTF8_LCASE",),
    "SetNamespaceLocation": ("ALTER DATABASE {namespace} SET LOCATION '{path}/out'",),
    "DropNamespace": ("DROP DATABASE IF EXISTS {namespace} CASCADE",),
    "ShowNamespaces": ("SHOW NAMESPACES", "SHOW SCHEMAS IN {namespace}"),
    "CreateTable": (
        "CREATE TABLE {new} USING {format} LOCATION '{path}/data.{format}'",
        "CREATE TABLE {new} (a STRING) USING {format} OPTIONS (path '{path}/out')",
        "CREATE TABLE IF NOT EXISTS {new} USING {format} AS {query}",
        "CREATE EXTERNAL TABLE {new} (a STRING) STORED AS TEXTFILE LOCATION '{path}'",
        "CREATE TABLE {new} (id BIGINT) TBLPROPERTIES ('key' = 'id')",
    ),
    "CreateTableLike": ("CREATE TABLE {new} LIKE {name} USING {format} LOCATION '{path}/out'",),
    "ReplaceTable": (
        "REPLACE TABLE {new} (a INT) USING {format}",
        "CREATE OR REPLACE TABLE {new} USING {format} AS {query}",
    ),
    "Analyze": ("ANALYZE TABLE {name} COMPUTE STATISTICS", "ANALYZE TABLE {name} COMPUTE STATISTICS FOR ALL COLUMNS"),
    "AnalyzeTables": ("ANALYZE TABLES IN {namespace} COMPUTE STATISTICS",),
    "AddTableColumns": ("ALTER TABLE {name} ADD COLUMNS (zz INT)",),
    "RenameTableColumn": ("ALTER TABLE {name} RENAME COLUMN id TO zz",),
    "DropTableColumns": ("ALTER TABLE {name} DROP COLUMN status",),
    "RenameTable": ("ALTER TABLE {name} RENAME TO zz", "ALTER VIEW {name} RENAME TO zz"),
    "SetTableProperties": ("ALTER TABLE {name} SET TBLPROPERTIES ('buckets' = '8')",),
    "UnsetTableProperties": ("ALTER TABLE {name} UNSET TBLPROPERTIES ('comment')",),
    "AlterTableAlterColumn": ("ALTER TABLE {name} ALTER COLUMN status COMMENT 'x'",),
    "HiveChangeColumn": ("ALTER TABLE {name} CHANGE COLUMN status status STRING COMMENT 'x'",),
    "HiveReplaceColumns": ("ALTER TABLE {name} REPLACE COLUMNS (zz INT)",),
    "SetTableSerDe": ("ALTER TABLE {name} SET SERDE 'x'", "ALTER TABLE {name} SET SERDEPROPERTIES ('a' = 'b')"),
    "AddTablePartition": ("ALTER TABLE {name} ADD PARTITION (a = 1) LOCATION '{path}/out'",),
    "RenameTablePartition": ("ALTER TABLE {name} PARTITION (a = 1) RENAME TO PARTITION (a = 2)",),
    "DropTablePartitions": ("ALTER TABLE {name} DROP PARTITION (a = 1)",),
    "SetTableLocation": ("ALTER TABLE {name} SET LOCATION '{path}/out'",),
    "RecoverPartitions": ("ALTER TABLE {name} RECOVER PARTITIONS",),
    "AlterClusterBy": ("ALTER TABLE {name} CLUSTER BY (id)",),
    "AlterTableCollation": ("ALTER TABLE {name} DEFAULT COLLATION UTF8_LCASE",),
    "AddTableConstraint": ("ALTER TABLE {name} ADD CONSTRAINT c CHECK (id > 0)",),
    "DropTableConstraint": ("ALTER TABLE {name} DROP CONSTRAINT c",),
    "DropTable": ("DROP TABLE {name}", "DROP TABLE IF EXISTS {name} PURGE"),
    "DropView": ("DROP VIEW IF EXISTS {name}",),
    "CreateView": (
        "CREATE OR REPLACE TEMPORARY VIEW {view} AS {query}",
        "CREATE GLOBAL TEMPORARY VIEW {view} AS {query}",
        "CREATE OR REPLACE VIEW {new} AS {query}",
    ),
    "CreateTempViewUsing": (
        "CREATE OR REPLACE TEMPORARY VIEW zz USING {format} OPTIONS (path '{path}/data.{format}')",
        "CREATE TEMPORARY VIEW zz (a STRING) USING {format} OPTIONS (path '{path}')",
    ),
    "CreateMetricView": ("CREATE OR REPLACE VIEW {new} (a) WITH METRICS LANGUAGE YAML AS $$ version: 0.1 $$",),
    "AlterViewQuery": ("ALTER VIEW {name} AS {query}",),
    "AlterViewSchemaBinding": ("ALTER VIEW {name} WITH SCHEMA EVOLUTION",),
    "CreateFunction": (
        "CREATE TEMPORARY FUNCTION {function} AS 'java.lang.String' USING JAR '{path}/data.jar'",
        "CREATE OR REPLACE TEMPORARY FUNCTION {function} AS 'weft.Pwn' USING JAR '{url}/data.jar'",
        "CREATE OR REPLACE TEMPORARY FUNCTION {function} AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFAbs'",
        "CREATE FUNCTION {function} AS 'weft.Pwn' USING FILE '{path}/data.txt'",
    ),
    "CreateUserDefinedFunction": (
        "CREATE OR REPLACE TEMPORARY FUNCTION {function}(a INT) RETURNS INT RETURN a + 1",
        "CREATE TEMPORARY FUNCTION {function}() RETURNS TABLE (a INT) RETURN {query}",
        "CREATE FUNCTION {function}(a INT) RETURNS INT LANGUAGE SQL RETURN 1",
    ),
    "DropFunction": ("DROP TEMPORARY FUNCTION IF EXISTS {function}", "DROP FUNCTION IF EXISTS {function}"),
    "CreateVariable": ("DECLARE OR REPLACE VARIABLE {variable} INT DEFAULT 1", "DECLARE {variable} = (SELECT 1)"),
    "DropVariable": ("DROP TEMPORARY VARIABLE IF EXISTS {variable}",),
    "Explain": (
        "EXPLAIN {statement}",
        "EXPLAIN EXTENDED {statement}",
        "EXPLAIN FORMATTED {statement}",
        "EXPLAIN CODEGEN {statement}",
        "EXPLAIN COST {statement}",
    ),
    "ShowTables": ("SHOW TABLES", "SHOW TABLES IN {namespace} LIKE '*'"),
    "ShowTableExtended": ("SHOW TABLE EXTENDED IN {namespace} LIKE '*'",),
    "ShowTblProperties": ("SHOW TBLPROPERTIES {name}",),
    "ShowColumns": ("SHOW COLUMNS IN {name}",),
    "ShowViews": ("SHOW VIEWS IN {namespace}",),
    "ShowPartitions": ("SHOW PARTITIONS {name}",),
    "ShowFunctions": ("SHOW FUNCTIONS", "SHOW USER FUNCTIONS IN {namespace} LIKE 'a*'"),
    "ShowCreateTable": ("SHOW CREATE TABLE {name}", "SHOW CREATE TABLE {name} AS SERDE"),
    "ShowCurrentNamespace": ("SHOW CURRENT NAMESPACE",),
    "ShowCatalogs": ("SHOW CATALOGS LIKE '*'",),
    "ShowCollations": ("SHOW COLLATIONS",),
    "ShowProcedures": ("SHOW PROCEDURES", "SHOW PROCEDURES IN {namespace}"),
    "DescribeFunction": ("DESCRIBE FUNCTION EXTENDED {function}",),
    "DescribeProcedure": ("DESCRIBE PROCEDURE {procedure}",),
    "DescribeNamespace": ("DESCRIBE DATABASE EXTENDED {namespace}",),
    "DescribeRelation": ("DESCRIBE EXTENDED {name}", "DESCRIBE TABLE {name} id", "DESC FORMATTED {name} AS JSON"),
    "DescribeQuery": ("DESCRIBE QUERY {query}",),
    "CommentNamespace": ("COMMENT ON DATABASE {namespace} IS 'x'",),
    "CommentTable": ("COMMENT ON TABLE {name} IS 'x'",),
    "CommentColumn": ("COMMENT ON COLUMN {name}.id IS 'x'",),
    "RefreshTable": ("REFRESH TABLE {name}",),
    "RefreshFunction": ("REFRESH FUNCTION {function}",),
    "RefreshResource": ("REFRESH '{path}'", 'REFRESH "{path}"'),
    "CacheTable": (
        "CACHE TABLE t",
        "CACHE TABLE {name}",
        "CACHE LAZY TABLE zz AS {query}",
        "CACHE TABLE zz OPTIONS ('a' 'b') {query}",
    ),
    "UncacheTable": ("UNCACHE TABLE IF EXISTS {name}",),
    "ClearCache": ("CLEAR CACHE",),
    "LoadData": ("LOAD DATA LOCAL INPATH '{path}/data.txt' OVERWRITE INTO TABLE {name}",),
    "TruncateTable": ("TRUNCATE TABLE {name}",),
    "RepairTable": ("MSCK REPAIR TABLE {name}",),
    "ManageResource": (
        "ADD JAR '{path}/data.jar'",
        "ADD JAR '{url}/data.jar'",
        "ADD FILE '{path}/data.txt'",
        "ADD FILES '{url}/data.txt'",
        "ADD ARCHIVE '{path}/data.jar'",
        "LIST JARS",
        "LIST FILE",
    ),
    "CreateIndex": ("CREATE INDEX zz ON TABLE {name} (id)",),
    "DropIndex": ("DROP INDEX IF EXISTS zz ON TABLE {name}",),
    "Call": ("CALL {procedure}('t')", "CALL {procedure}(table => 't')", "CALL {computed}('t')"),
    "FailNativeCommand": ("DFS", "EXPORT TABLE {name}", "START TRANSACTION"),
    "CreatePipelineDataset": (
        "CREATE MATERIALIZED VIEW {new} AS {query}",
        "CREATE STREAMING TABLE {new} AS SELECT * FROM STREAM t",
    ),
    "CreatePipelineInsertIntoFlow": ("CREATE FLOW zz AS INSERT INTO {name} BY NAME {query}",),
    "CreateFlowAutoCdc": ("CREATE FLOW zz AS AUTO CDC INTO {name} FROM STREAM t KEYS (id) SEQUENCE BY ots",),
    "CompoundStatement": ("BEGIN {statement}; END",),
}
"""Forms of each alternative. Cursors are statements of scripts alone, see `SETTINGS` and `SCRIPTS`."""

SETTINGS: Final = (
    "SET spark.sql.runSQLOnFiles = true", "SET spark.sql.variable.substitute = true", "SET zz = 1", "SET", "SET -v",
    "RESET", "RESET spark.sql.runSQLOnFiles", "SET TIME ZONE 'Asia/Tokyo'", "SET TIME ZONE LOCAL", "SET `zz` = `1`",
    "SET VAR {variable} = 1", "SET VARIABLE ({variable}) = (SELECT 1)", "SET PATH = system.builtin, weft", "SET ROLE x",
    "SET COLLATION UTF8_LCASE",
)  # fmt: skip
SCRIPTS: Final = (
    "BEGIN DECLARE x INT DEFAULT 1; {statement}; SET x = 2; END",
    "a: BEGIN {statement}; {statement}; END a",
    "BEGIN IF true THEN {statement}; ELSE {statement}; END IF; END",
    "BEGIN FOR r AS {query} DO {statement}; END FOR; END",
    "BEGIN WHILE false DO {statement}; END WHILE; {statement}; END",
    "BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN {statement}; END; SELECT 1 / 0; END",
    "BEGIN DECLARE c CURSOR FOR {query}; OPEN c; FETCH c INTO x; CLOSE c; END",
)
_SLOTS: Final[Mapping[str, Sequence[str]]] = {
    "query": (
        "SELECT 1 AS a",
        "SELECT {expression} AS a FROM {relation}",
        "SELECT {hint} {expression} AS a, {expression} AS b FROM {relation} WHERE {condition}",
        "SELECT count(*) AS n FROM {relation} GROUP BY {grouping} HAVING count(*) > 0",
        "SELECT DISTINCT {expression} AS a FROM {relation} ORDER BY 1 LIMIT 3 OFFSET 1",
        "SELECT * FROM {relation} SORT BY 1",
        "SELECT TRANSFORM(id) USING 'cat {path}/data.txt' AS (b STRING) FROM t",
        "FROM t SELECT TRANSFORM(id) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING '/bin/sh {path}/run.sh' AS b",
        "MAP id USING 'touch {path}/out' FROM t",
        "REDUCE id USING 'touch {path}/out' FROM t",
        "{query} UNION ALL {query}",
        "({query}) EXCEPT ({query})",
        "({query}) INTERSECT ({query})",
        "WITH w AS ({query}) SELECT * FROM w",
        "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT n FROM r",
        "VALUES (1, {expression}), (2, NULL)",
        "TABLE {name}",
        "FROM {relation}",
        "FROM {relation} SELECT {expression} AS a",
        "FROM {relation} |> WHERE {condition} |> SELECT {expression} AS a",
        "FROM {relation} |> AGGREGATE count(*) AS n GROUP BY {grouping}",
        "FROM t |> EXTEND {expression} AS zz |> DROP zz |> SET status = 'x' |> AS u |> LIMIT 3",
        "FROM t |> UNION ALL (SELECT * FROM t) |> TABLESAMPLE (50 PERCENT)",
        "SELECT id, row_number() OVER w AS n FROM t WINDOW w AS (PARTITION BY status ORDER BY id)",
        "SELECT id, status FROM t QUALIFY row_number() OVER (ORDER BY id) = 1",
        "SELECT * FROM (SELECT id, status FROM t) PIVOT (count(*) FOR status IN ('new', 'late'))",
        "SELECT * FROM (VALUES (1, 2)) AS v (a, b) UNPIVOT (x FOR n IN (a, b))",
        "SELECT * FROM t LATERAL VIEW explode(array(1, {expression})) x AS y",
        "SELECT * FROM t DISTRIBUTE BY id",
    ),
    "relation": (
        "t",
        "wide AS b",
        "{name}",
        "({query}) AS q",
        "t JOIN {relation} ON true",
        "t, LATERAL (SELECT t.id + 1 AS z)",
        "t.files",
        "weft.t.commits",
        "t VERSION AS OF 'before'",
        "t TIMESTAMP AS OF ({query})",
        "t TIMESTAMP AS OF current_timestamp()",
        "t CHANGES FROM VERSION 'earliest'",
        "t WITH (read_optimized = true)",
        "t WITH (path = '{path}/data.txt')",
        "STREAM t",
        "t TABLESAMPLE (2 ROWS)",
        "range(5)",
        "VALUES (1), (2)",
        "{format}.`{path}/data.{format}`",
        "{format}.`{url}/data.{format}`",
        "`{format}`.`file://{path}/data.{format}`",
        "weft.`{path}`",
        "{tablefunction}",
        "IDENTIFIER({computedtext})",
        "UNNEST(array(1, 2))",
        "JSON_TABLE('[1]', '$[*]' COLUMNS (a INT PATH '$'))",
    ),
    "tablefunction": (
        "weft_changes('t', 'earliest')",
        "weft_changes('{path}', 'earliest')",
        "weft_catalog_weft('t')",
        "weft_catalog_weft('{path}')",
        "explode(array(1, 2))",
        "python_worker_logs()",
        "read_files('{path}')",
        "sql_keywords()",
        "collations()",
        "json_tuple('{}', 'a')",
        "IDENTIFIER('ran' || 'ge')(3)",
        "inline(array(struct(1, 2)))",
    ),
    "expression": (
        "1",
        "id",
        "status",
        "({query})",
        "EXISTS ({query})",
        "'${env:WEFT_FUZZ_SECRET}'",
        "{callfunction}",
        "upper({expression})",
        "CASE WHEN {condition} THEN {expression} END",
        "transform(array(1), x -> {expression})",
        "IDENTIFIER('i' || 'd')",
        "CAST({expression} AS STRING)",
        "struct({expression})",
    ),
    "callfunction": (
        "abs(1)",
        "{reflect}('java.lang.System', 'setProperty', 'weft.fuzz', 'x')",
        "{reflect}('java.lang.System', 'getProperty', 'user.dir')",
        "from_xml('<a>1</a>', 'a INT', map('rowValidationXSDPath', '{path}/data.xsd'))",
        "schema_of_xml('<a>1</a>', map('rowValidationXSDPath', '{path}/data.xsd'))",
        "from_avro(X'00', '\"int\"', map('avroSchemaUrl', '{url}/data.avsc'))",
        "schema_of_avro('\"int\"', map('avroSchemaUrl', '{url}/data.avsc'))",
        "from_protobuf(X'00', 'M', '{path}/data.txt')",
        "to_protobuf(struct(1), 'M', '{path}/data.txt')",
        "xpath('<!DOCTYPE a [<!ENTITY e SYSTEM \"file://{path}/data.txt\">]><a>&e;</a>', 'a/text()')",
        "xpath_string('<!DOCTYPE a SYSTEM \"{url}/data.dtd\"><a/>', 'a')",
        "from_json('[1]', 'array<int>', map('path', '{path}/data.txt'))",
        "from_csv('1', 'a INT', map('path', '{path}/data.txt'))",
        "zz(1)",
        "{function}(1)",
        "spark_catalog.default.zz(1)",
        "input_file_name()",
        "current_catalog()",
    ),
    "reflect": (
        "reflect", "java_method", "try_reflect", "REFLECT", "`reflect`", "system.builtin.reflect",
        "builtin.java_method", "IDENTIFIER('ref' || 'lect')", "spark_catalog.default.reflect",
    ),
    "condition": ("true", "id > 1", "id IN ({query})", "{expression} IS NOT NULL", "EXISTS ({query})"),
    "grouping": ("1", "status", "ROLLUP (id, status)", "GROUPING SETS ((id), ())", "ALL"),
    "hint": ("", "/*+ BROADCAST(t) */", "/*+ REPARTITION(2) */", "/*+ zz('{path}') */"),
    "name": (
        "t", "wide", "weft.t", "t.files", "zz", "spark_catalog.default.zz", "default.zz", "global_temp.zz",
        "spark_catalog.t", "session.zz", "IDENTIFIER('t')", "{computed}", "{computed}", "t.orders",
        "weft.`{path}`", "text.`{path}/data.txt`",
    ),
    "view": ("zz", "t", "wide", "IDENTIFIER('t')", "{computed}", "session.zz"),
    "new": ("zz", "spark_catalog.default.zz", "default.zz", "weft.zz", "weft.a.zz", "{computed}", "spark_catalog.zz"),
    "namespace": ("default", "spark_catalog.default", "weft", "spark_catalog", "global_temp", "{computed}", "zz"),
    "function": ("zz", "abs", "spark_catalog.default.zz", "session.zz", "{computed}"),
    "variable": ("zz", "session.zz", "system.session.zz", "{computed}"),
    "procedure": ("weft.system.verify", "system.explain_row", "weft.system.compact", "{computed}"),
    "computed": ("IDENTIFIER({computedtext})",),
    "computedtext": (
        "'z' || 'z'", "'spark_catalog.default.z' || 'z'", "'t' || ''", "'weft.system.com' || 'pact'", "concat('zz')",
        "'text' || '.`{path}/data.txt`'", "CASE WHEN second(now()) % 2 = 0 THEN 't' ELSE 'zz' END", "'de' || 'fault'",
    ),
    "format": ("text", "csv", "json", "parquet", "orc", "xml", "binaryFile", "weft"),
}  # fmt: skip

_PARTS: Final[Mapping[str, str]] = {
    "query": "{}",
    "relation": "SELECT * FROM {}",
    "tablefunction": "SELECT * FROM {}",
    "expression": "SELECT {} AS a FROM t",
    "callfunction": "SELECT {} AS a",
    "reflect": "SELECT {}('java.lang.System', 'setProperty', 'weft.fuzz', 'x') AS a",
}
"""Slots of queries, and the statement in which each form of them is tried."""


class Statements:
    """A stream of random statements. The same seed gives the same statements."""

    def __init__(self, seed: int, path: str, url: str) -> None:
        """Statements that name files below ``path``, and addresses below ``url``."""
        self._random = random.Random(seed)
        self._fixed = {"path": path, "url": url}
        self._top = [*STATEMENTS, "SETTINGS", "SCRIPTS"]

    def every(self) -> Iterator[str]:
        """A statement of each form, of statements and of the parts of queries."""
        for slot, statement in _PARTS.items():
            yield from (self._fill(statement.replace("{}", form), 2) for form in _SLOTS[slot])
        for name in self._top:  # the last ones, because they spoil a session that lets them through
            yield from (self._fill(form, 2) for form in self._forms(name))

    def next(self) -> str:
        """A random statement."""
        return self._fill(self._random.choice(self._forms(self._random.choice(self._top))), _DEPTH)

    @staticmethod
    def _forms(name: str) -> Sequence[str]:
        return {**STATEMENTS, "SETTINGS": SETTINGS, "SCRIPTS": SCRIPTS}[name]

    def _fill(self, form: str, depth: int) -> str:
        return re.sub(r"\{(\w+)\}", lambda slot: self._slot(slot.group(1), depth), form)

    def _slot(self, slot: str, depth: int) -> str:
        if slot in self._fixed:
            return self._fixed[slot]
        if slot in {"statement", "quoted"}:
            name = self._random.choice(self._top) if depth else "StatementDefault"
            text = self._fill(self._random.choice(self._forms(name)), depth - 1) if depth else "SELECT 1"
            return text if slot == "statement" else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        forms = _SLOTS[slot]
        return self._fill(self._random.choice(forms) if depth > 0 else forms[0], depth - 1)
