"""Predicate: what a pyarrow expression says, as a tree that can be asked about.

pyarrow shows nothing of an expression but its text. It does write one as Arrow data, to send it to another process:
calls, columns and literals, in order, as the metadata of a schema, and the literals' values as its columns. That is
read here. What is asked of the tree only ever saves reading; an expression that cannot be read (another version of
Arrow may write it differently) is None, and saves nothing.

Every answer errs on one side: `possible_values` and `may_hold` may allow too much, never too little.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

MAX_DEPTH: Final = 50  # of a tree: what is asked of it recurses
_AND: Final = frozenset({"and", "and_kleene"})
_OR: Final = frozenset({"or", "or_kleene"})
_MIRRORED: Final = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_NEGATED: Final = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
    "is_null": "is_valid",
    "is_valid": "is_null",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table; ``nested`` if a part of it is meant."""

    name: str
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ValueSet:
    """The set of ``is_in``.

    Attributes:
        type: Of its values.
        values: Distinct, in order, without NULL.
        has_null: Whether NULL is among them.
    """

    type: pa.DataType
    values: tuple[Any, ...]
    has_null: bool

    @classmethod
    def of(cls, array: pa.Array) -> ValueSet:
        return cls(array.type, tuple(sorted(set(array.drop_null().to_pylist()))), array.null_count > 0)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of its arguments. Of options only the set of ``is_in`` is kept.

    An AND of an AND is one of all their arguments, and so is an OR of an OR: chains of many are common.
    """

    function: str
    arguments: tuple[Node, ...]
    values: ValueSet | None = None


Node: TypeAlias = Column | Literal | Call


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """What is known of the values of a column in some rows.

    Attributes:
        type: Of the column.
        least, largest: Of the values that are not NULL, NaN left out; None if nothing is known or there are none.
        nulls: None if that is not known.
        rows: How many there are.
    """

    type: pa.DataType
    least: Any
    largest: Any
    nulls: int | None
    rows: int

    @property
    def all_null(self) -> bool:
        return self.nulls == self.rows


Known: TypeAlias = Callable[[str], ColumnRange | None]
"""Column to what is known of it; None: nothing."""


def parse(expression: pc.Expression) -> Node | None:
    """The tree of an expression that is not bound yet; None if it cannot be read."""
    try:
        _, (buffer, *_) = expression.__reduce__()
        reader = pa.ipc.open_file(buffer)
        return _read(_metadata(reader.schema), reader.get_batch(0))
    except (pa.ArrowException, LookupError, OverflowError, StopIteration, TypeError, ValueError, struct.error):
        return None  # OverflowError: a moment that Python's calendar does not reach


@dataclass(slots=True)
class _Open:
    """A call of which some arguments are read."""

    function: str
    arguments: list[Node] = field(default_factory=list)
    values: ValueSet | None = None
    depth: int = 1

    def add(self, node: Node, depth: int) -> None:
        """Append an argument, which is a tree of this depth."""
        if depth > MAX_DEPTH:
            raise ValueError(self.function)
        self.arguments.append(node)
        self.depth = max(self.depth, depth + 1)

    def absorb(self, inner: _Open) -> None:
        """Append a call."""
        if inner.function == self.function and self.function in _AND | _OR:
            self.arguments += inner.arguments
            self.depth = max(self.depth, inner.depth)
        else:
            self.add(Call(inner.function, tuple(inner.arguments), inner.values), inner.depth)


def _read(words: Iterator[tuple[str, str]], literals: pa.RecordBatch) -> Node:
    """The serialised form: a call is ``call f``, its arguments, ``end f``. Not recursive: chains are deep here."""
    root = _Open("")
    calls = [root]
    for kind, word in words:
        if kind == "call":
            calls.append(_Open(word))
        elif kind == "end":
            inner = calls.pop()
            calls[-1].absorb(inner)
        elif kind == "options":
            if calls[-1].function == "is_in":
                calls[-1].values = ValueSet.of(literals.column(int(word))[0]["value_set"].values)
        elif kind == "literal":
            column = literals.column(int(word))
            calls[-1].add(Literal(column[0].as_py(), column.type), 0)
        elif kind == "field_ref":
            calls[-1].add(Column(word), 0)
        elif kind == "nested_field_ref":
            path = [next(words)[1] for _ in range(int(word))]
            calls[-1].add(Column(path[0], nested=True), 0)
        else:
            raise ValueError(kind)
    (node,) = root.arguments
    return node


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """All pairs of a schema's metadata. pyarrow makes a dictionary of them, but here keys repeat.

    By Arrow's C data interface: ``metadata`` is the third pointer of an ArrowSchema, and points to the number of pairs,
    then per pair the length and the bytes of key and value.
    """
    capsule = schema.__arrow_c_schema__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = (ctypes.c_void_p * 3).from_address(get_pointer(capsule, b"arrow_schema"))[2]
    if address is None:
        return

    def number() -> int:
        nonlocal address
        (value,) = struct.unpack("=i", ctypes.string_at(address, 4))
        address += 4
        return int(value)

    def text() -> str:
        nonlocal address
        length = number()
        value = ctypes.string_at(address, length).decode()
        address += length
        return value

    for _ in range(number()):
        yield text(), text()


def columns_of(node: Node) -> frozenset[str]:
    """The table's columns that an expression looks at."""
    match node:
        case Column():
            return frozenset({node.name})
        case Call():
            return frozenset().union(*map(columns_of, node.arguments))
    return frozenset()


def possible_values(node: Node, column: str, arrow_type: pa.DataType) -> frozenset[Any] | None:
    """The values (`pa.Scalar.as_py`) that a column can have in a row for which the expression is true; None: any."""
    match node:
        case Literal():
            return None if node.value else frozenset()
        case Call(function, arguments) if function in _AND:
            return reduce(_both, (possible_values(one, column, arrow_type) for one in arguments))
        case Call(function, arguments) if function in _OR:
            return _either(possible_values(one, column, arrow_type) for one in arguments)
        case Call("if_else", (condition, first, second)):
            chosen = (possible_values(one, column, arrow_type) for one in (condition, first))
            return _either([reduce(_both, chosen), possible_values(second, column, arrow_type)])
        case Call("equal", (Column(name, False), Literal() as literal)) if name == column:
            return _exact([literal.value], literal.type, arrow_type)
        case Call("equal", (Literal() as literal, Column(name, False))) if name == column:
            return _exact([literal.value], literal.type, arrow_type)
        case Call("is_in", (Column(name, False),), values) if name == column and values is not None:
            return _exact(values.values, values.type, arrow_type)
    return None


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _either(parts: Iterable[frozenset[Any] | None]) -> frozenset[Any] | None:
    found: set[Any] = set()
    for part in parts:
        if part is None:
            return None
        found |= part
    return frozenset(found)


def _exact(values: Iterable[Any], given: pa.DataType, wanted: pa.DataType) -> frozenset[Any] | None:
    """Values that a column of type ``wanted`` can have, of those it is compared with; None where that is not plain."""
    if not _same_kind(given, wanted):
        return None
    if given == wanted:
        return frozenset(value for value in values if value is not None)
    found = set()
    for value in values:
        try:
            if value is not None:
                found.add(pa.scalar(value, wanted).as_py())
        except (pa.ArrowException, OverflowError):
            continue  # no column of this type can have it
    return frozenset(found)


def _same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether values of these types compare in Arrow as they do in Python: no cast rounds."""
    return bool(one == other or any(is_kind(one) and is_kind(other) for is_kind in _KINDS))


_KINDS: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_integer,
    lambda kind: bool(pa.types.is_string(kind) or pa.types.is_large_string(kind)),
    lambda kind: bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)),
)


def may_hold(node: Node, known: Known) -> bool:
    """Whether the expression can be true for one of some rows, of whose columns ranges are known."""
    match node:
        case Literal():
            return bool(node.value)
        case Call(function, arguments) if function in _AND:
            return all(may_hold(one, known) for one in arguments)
        case Call(function, arguments) if function in _OR:
            return any(may_hold(one, known) for one in arguments)
        case Call("if_else", (condition, first, second)):
            return (may_hold(condition, known) and may_hold(first, known)) or may_hold(second, known)
        case Call("invert", (Call(function, arguments),)) if function in _NEGATED:
            # The negation of a comparison with NaN is true.
            floats = any(_is_floating(known(name)) for name in columns_of(node))
            return floats or may_hold(Call(_NEGATED[function], arguments), known)
        case Call("is_null", (Column(name, False),)):
            found = known(name)
            return found is None or found.nulls is None or found.nulls > 0 or _is_floating(found)  # NaN may count
        case Call("is_valid", (Column(name, False),)):
            found = known(name)
            return found is None or not found.all_null
        case Call(function, (Column(name, False), Literal() as literal)) if function in _MIRRORED:
            return _may_compare(function, known(name), literal)
        case Call(function, (Literal() as literal, Column(name, False))) if function in _MIRRORED:
            return _may_compare(_MIRRORED[function], known(name), literal)
        case Call("is_in", (Column(name, False),), values) if values is not None:
            return _may_be_in(known(name), values)
    return True


def _is_floating(found: ColumnRange | None) -> bool:
    return found is not None and bool(pa.types.is_floating(found.type))


def _may_compare(function: str, found: ColumnRange | None, literal: Literal) -> bool:
    value = literal.value
    if value is None or (found is not None and found.all_null):
        return False  # comparing with NULL is never true
    if found is None or found.least is None or not _same_kind(literal.type, found.type):
        return True
    match function:
        case "equal":
            return bool(found.least <= value <= found.largest)
        case "not_equal":
            return bool(found.least != value or found.largest != value or _is_floating(found))
        case "less":
            return bool(found.least < value)
        case "less_equal":
            return bool(found.least <= value)
        case "greater":
            return bool(found.largest > value)
        case _:
            return bool(found.largest >= value)


def _may_be_in(found: ColumnRange | None, wanted: ValueSet) -> bool:
    if found is None or _is_floating(found) or not _same_kind(wanted.type, found.type):
        return True
    if wanted.has_null and found.nulls != 0:
        return True  # NULL may be in a set
    if found.least is None:
        return not found.all_null
    first = bisect_left(wanted.values, found.least)
    return first < len(wanted.values) and bool(wanted.values[first] <= found.largest)
