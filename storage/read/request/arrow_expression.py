"""Converts a pyarrow expression to a `Condition`, so that a filter of a caller can prune.

pyarrow offers no interface to inspect an expression. Only this module reads the pickled form of an expression: an Arrow
IPC file whose schema metadata lists calls, columns and literals in prefix order, with the values of the literals as
columns. The file format is specified, but this list is not. So only pruning depends on it: Arrow always evaluates the
filter itself, and an expression that cannot be parsed does not prune.

The specified alternative, Substrait (`pyarrow.substrait.serialize_expressions`), cannot be used: its size doubles with
every nested call (20 conditions are 200 MB), and it cannot represent many functions, so that one of them in an AND
would hide the condition on the key beside it. The text of an expression cannot be parsed either, because it shortens
long lists of values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.predicate import (
    And,
    Comparison,
    Condition,
    Constant,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Other,
    columns_of,
)

# Of nested conditions, because functions on conditions recurse. Deeper parts are reduced to their columns.
MAX_DEPTH: Final = 50
_FILE_MAGIC_BYTES: Final = 8
_COMPARISONS: Final[dict[str, Operator]] = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_MIRRORED: Final[dict[Operator, Operator]] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as an argument of a call; ``nested`` if the argument is a field in the column."""

    name: str
    nested: bool = False


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Any
    type: pa.DataType


_Argument = _Column | _Literal | Condition


def read_expression(expression: pc.Expression) -> Condition | None:
    """Convert an unbound expression to a condition; None if it cannot be parsed.

    Parts that are not conditions of weft become `Other`. Chains of AND and of OR become one condition each.
    """
    try:
        _, (buffer, *_) = expression.__reduce__()
        literals = pa.ipc.open_file(buffer).get_batch(0)
        return _read(_metadata(pa.ipc.read_message(buffer.slice(_FILE_MAGIC_BYTES)).metadata), literals)
    except (pa.ArrowException, LookupError, OverflowError, StopIteration, TypeError, ValueError, struct.error):
        return None  # OverflowError: a literal beyond the calendar of Python


@dataclass(slots=True)
class _Call:
    """A call whose arguments are being read."""

    function: str
    arguments: list[_Argument] = field(default_factory=list)
    value_set: pa.Array | None = None
    depth: int = 1

    def add(self, argument: _Argument, depth: int) -> None:
        """Append an argument with this depth of nested conditions."""
        if depth >= MAX_DEPTH:
            argument, depth = Other(_columns(argument)), 0
        self.arguments.append(argument)
        self.depth = max(self.depth, depth + 1)

    def end(self, inner: _Call) -> None:
        """Append a call; if both are chains of the same kind, append its arguments."""
        chain = _CHAINS.get(self.function)
        if chain is None or chain is not _CHAINS.get(inner.function):
            self.add(inner.condition(), inner.depth)
        else:
            self.arguments = [*self.arguments, *inner.arguments] if self.arguments else inner.arguments
            self.depth = max(self.depth, inner.depth)

    def condition(self) -> Condition:
        match self.function, self.arguments:
            case name, [*arguments] if name in _CHAINS:
                return _CHAINS[name](tuple(map(_as_condition, arguments)))
            case "invert", [argument]:
                return Not(_as_condition(argument))
            case "is_null", [_Column(name, False)]:
                return IsNull(name)
            case "is_valid", [_Column(name, False)]:
                return Not(IsNull(name))
            case "is_in", [_Column(name, False)] if self.value_set is not None:
                return In.of(name, self.value_set, of_null=self.value_set.null_count > 0)
            case name, [_Column(column, False), _Literal(value, arrow_type)] if name in _COMPARISONS:
                return Comparison(column, _COMPARISONS[name], value, arrow_type)
            case name, [_Literal(value, arrow_type), _Column(column, False)] if name in _COMPARISONS:
                return Comparison(column, _MIRRORED[_COMPARISONS[name]], value, arrow_type)
        return Other(frozenset().union(*map(_columns, self.arguments)))


_CHAINS: Final[dict[str, type[And | Or]]] = {"and": And, "and_kleene": And, "or": Or, "or_kleene": Or}


def _columns(argument: _Argument) -> frozenset[str]:
    if isinstance(argument, _Column):
        return frozenset({argument.name})
    return frozenset() if isinstance(argument, _Literal) else columns_of(argument)


def _as_condition(argument: _Argument) -> Condition:
    if isinstance(argument, _Literal):
        return Constant(bool(argument.value) if argument.value is not None else None)
    return Other(_columns(argument)) if isinstance(argument, _Column) else argument


def _read(words: Iterator[tuple[str, str]], literals: pa.RecordBatch) -> Condition:
    """Parse the list: a call is ``call f``, arguments and options, ``end f``. Not recursive, as calls nest deeply."""
    root = _Call("")
    calls = [root]
    for kind, word in words:
        if kind == "call":
            calls.append(_Call(word))
        elif kind == "end":
            inner = calls.pop()
            calls[-1].end(inner)
        elif kind == "options":
            if calls[-1].function == "is_in":
                calls[-1].value_set = literals.column(int(word))[0]["value_set"].values
        elif kind == "literal":
            column = literals.column(int(word))
            calls[-1].add(_Literal(column[0].as_py(), column.type), 0)
        elif kind == "field_ref":
            calls[-1].add(_Column(word), 0)
        elif kind == "nested_field_ref":
            path = [next(words)[1] for _ in range(int(word))]
            calls[-1].add(_Column(path[0], nested=True), 0)
        else:
            raise ValueError(kind)
    (argument,) = root.arguments
    return _as_condition(argument)


def _metadata(message: pa.Buffer) -> Iterator[tuple[str, str]]:
    """All pairs of the metadata of a schema message. The keys repeat, so pyarrow's dictionary would lose pairs.

    A message is a flatbuffer. Its header is field 2 of the root table, the metadata field 2 of the header, key and
    value fields 0 and 1 of each pair (Arrow's Message.fbs and Schema.fbs).
    """
    data = memoryview(message)

    def target(at: int) -> int:
        return at + int.from_bytes(data[at : at + 4], "little")

    def table_field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", data, table)[0]
        size, *offsets = struct.unpack_from(f"<HH{number + 1}H", data, vtable)
        if size < 2 * (number + 3) or offsets[-1] == 0:
            raise ValueError(number)
        return target(table + offsets[-1])

    def text(at: int) -> str:
        return str(data[at + 4 : target(at) + 4], "utf-8")

    pairs = table_field(table_field(target(0), 2), 2)
    for pair in range(pairs + 4, pairs + 4 + 4 * (target(pairs) - pairs), 4):
        yield text(table_field(target(pair), 0)), text(table_field(target(pair), 1))
