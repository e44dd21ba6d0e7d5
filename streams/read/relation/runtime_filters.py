"""Runtime filters: the keys of a join prune the scan of a view. Spark knows the keys only when it runs the query.

    SELECT ... FROM wide JOIN small USING (id) WHERE small.kind = 'new'
      optimization   Spark calls `filterAttributes` of a scan, and adds ``id IN dynamicpruning`` to it
      execution      Spark collects the ids of ``small``, which it broadcasts for the join anyway, calls `filter` with
                     them, then `toBatch`, and reads these partitions instead of those that were planned before

Spark does this (dynamic partition pruning) for inner and semi joins, and for outer joins that keep the rows of the
other side, if the other side is broadcast and has a filter. A scan that is planned with the keys as a further filter
reads only the file groups, row groups and rows that can have these keys. It may return other rows, too, which the join
drops.

Spark may use one scan object in several places of a plan, such as both sides of a self-join, with different filters or
none. So `filter` does not change the scan: it leaves the new batch for the next `toBatch` on the same thread, which
Spark calls directly afterwards. The reader of the partitions is that of the batch before, so partitions are
self-contained (`worker.PlannedTask`).
"""

from __future__ import annotations

import decimal
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType, StructType

from weft.storage.core.predicate import Condition
from weft.streams.read.relation.callbacks import WithoutMetrics
from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.planner_interface import ReadPlan
from weft.streams.read.relation.pushed_filters import in_condition, parse_predicate

__all__ = ["FilteredAtRunTime", "parse_runtime_filters"]

MAX_VALUES: Final = 100_000
"""A filter with more values is not used: the values are sent to the driver's Python process and to each task."""
MAX_LITERALS: Final = 1_000
"""The same for types whose values are fetched from the JVM one by one, at 0.1 ms each."""

Replan = Callable[[Sequence[Condition]], ReadPlan]


class FilteredAtRunTime(WithoutMetrics, answers={"supportsIterativePushdown": False}):
    """A scan that is planned again with runtime filters."""

    def __init__(self, jvm: Jvm, identity: str, batch: Any, plan: ReadPlan, schema: StructType) -> None:
        super().__init__(jvm, identity)
        self.plan = plan
        self._batch = batch
        self._schema = schema
        self._filtered = threading.local()
        self._effect = ""

    def filtered_batch(self, filters: Sequence[Condition]) -> tuple[Any, ReadPlan] | None:
        """Plan a batch of the rows that pass the filters; None if it would not be better than the present one."""
        raise NotImplementedError

    @property
    def effect(self) -> str:
        """The effect of the last runtime filters, for EXPLAIN; empty without any."""
        return self._effect

    def filterAttributes(self) -> Any:  # noqa: N802
        names = [name for name in self.plan.filterable if name in self._schema.names]
        return self.jvm.array(self.jvm.NamedReference, [self.jvm.FieldReference.column(name) for name in names])

    def filter(self, predicates: Any) -> None:
        filters = parse_runtime_filters(self.jvm, list(predicates), self._schema)
        filtered = self.filtered_batch(filters) if filters else None
        if filtered is not None:
            self._filtered.batch, plan = filtered
            self._effect = f"; filtered at run time: {plan.description}"

    def pushedPredicates(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.Predicate)

    def toBatch(self) -> Any:  # noqa: N802
        """Return the filtered batch once after `filter`, otherwise the same batch, by which Spark compares scans."""
        return self._filtered.__dict__.pop("batch", self._batch)


def parse_runtime_filters(jvm: Jvm, predicates: Sequence[Any], schema: StructType) -> list[Condition]:
    """Convert predicates to conditions; those that are too large or have no equivalent are left out."""
    parsed_filters = (_parse(jvm, predicate, schema) for predicate in predicates)
    return [item for item in parsed_filters if item is not None]


def _parse(jvm: Jvm, predicate: Any, schema: StructType) -> Condition | None:
    if predicate.name() == "IN":
        children = predicate.children()
        path, count = tuple(children[0].fieldNames()), len(children) - 1
        if len(path) != 1 or path[0] not in schema.names or count > MAX_VALUES:
            return None
        kind = schema[path[0]].dataType
        if count and _in_bulk(kind):
            (translated,) = jvm.v1_filters([predicate])
            values = json.loads(jvm.ObjectMapper().writeValueAsString(translated.values()), parse_float=decimal.Decimal)
            values = [value for value in values if value is not None]
            if isinstance(kind, DecimalType):
                values = list(map(decimal.Decimal, values))
            return in_condition(path[0], values, to_arrow_type(kind))
        if count > MAX_LITERALS:
            return None
    parsed = parse_predicate(predicate, schema, skip_nulls=True)  # a join drops rows whose value is null
    return None if parsed is None else parsed.condition


def _in_bulk(kind: DataType) -> bool:
    """Whether values have an exact form in JSON, so that one call fetches all of them."""
    return isinstance(kind, IntegralType | DecimalType) or kind == StringType()
