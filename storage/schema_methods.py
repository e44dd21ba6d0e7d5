"""The schema of a table, changed under live writers: the part of `storage.table.Table` that does it."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from storage.log.table_log import TableLog
from storage.services.schema_changes import SchemaChange, add_column, add_group, add_stream, set_default, widen_column


class EvolvingTable(abc.ABC):
    """What changes a table's schema. Changes only add and widen, and those of several processes are merged."""

    _table_log: TableLog

    @abc.abstractmethod
    def _check_service(self) -> None:
        """Make sure that this process may change the table, before it does."""

    def add_column(
        self,
        group: str,
        name: str,
        type: str,  # noqa: A002 - what the configuration calls it
        *,
        default: object = None,
        function: str | Mapping[str, Any] | None = None,
    ) -> SchemaChange:
        """Add a column, the last of the table, to a group. Writers that do not send it go on, and mean NULL.

        Args:
            group: Of the table.
            name: Of the column.
            type: Spark SQL type name.
            default: Shown where the group is absent; not where its events are older than the column.
            function: Of a column of an aggregate group, as in the configuration.

        Raises:
            NotFound: The table has no such group.
            InvalidInput: The changed configuration is wrong, or the group is merged by code.
            Conflict: There is another column of that name. The very same one is no error.
        """
        self._check_service()
        return add_column(self._table_log, group, name, type, default, function)

    def add_group(
        self,
        name: str,
        columns: Mapping[str, str | Mapping[str, Any]],
        *,
        ordering: Sequence[str] = (),
        merge: str = "latest",
        functions: Mapping[str, Any] | None = None,
        state: Mapping[str, str] | None = None,
        streams: Sequence[str] = (),
        new_streams: Mapping[str, str] | None = None,
    ) -> SchemaChange:
        """Add a group of new columns, and say which streams write it: at least one.

        Args:
            name: Of the group.
            columns: Name to type name, or to ``{"type": ..., "default": ...}``.
            ordering: Those of the columns by which events are ordered.
            merge: Mode of the group.
            functions: Of an aggregate group, by column.
            state: State columns of a custom merger.
            streams: Streams of the table that write the group from now on; their batches may leave it out.
            new_streams: New streams that write this group alone: name to ``group``, ``row`` or ``ignore``, what their
                deletes mean.

        Raises:
            NotFound: The table has no such stream.
            InvalidInput: The changed configuration is wrong.
            Conflict: There is another group, column or stream of that name. The very same group is no error.
        """
        self._check_service()
        return add_group(
            self._table_log,
            name,
            columns,
            streams=streams,
            new_streams=new_streams or {},
            ordering=list(ordering),
            merge=merge,
            functions=dict(functions or {}),
            state=dict(state or {}),
        )

    def add_stream(self, name: str, groups: Sequence[str], *, on_delete: str = "group") -> SchemaChange:
        """Add a producer of groups that the table has.

        Raises:
            InvalidInput: The changed configuration is wrong: no such group, or deletes that do not go together.
            Conflict: There is another stream of that name. The very same one is no error.
        """
        self._check_service()
        return add_stream(self._table_log, name, list(groups), on_delete)

    def widen_column(self, name: str, type: str) -> SchemaChange:  # noqa: A002 - what the configuration calls it
        """Give a column a wider type: of integers, float to double, or a decimal with more digits before the point.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: The type does not hold all values of the column, or code merges the column.
        """
        self._check_service()
        return widen_column(self._table_log, name, type)

    def set_default(self, name: str, value: object) -> SchemaChange:
        """Show another value where a column's group is absent, in older rows too; None: NULL.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: It takes no default, or the value is not of its type.
        """
        self._check_service()
        return set_default(self._table_log, name, value)
