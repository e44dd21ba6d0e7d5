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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

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
class Call:
    """A function of its arguments. Of options only the set of ``is_in`` is kept."""

    function: str
    arguments: tuple[Node, ...]
    values: pa.Array | None = None


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
        return _Parser(_metadata(reader.schema), reader.get_batch(0)).node()
    except (pa.ArrowException, LookupError, TypeError, ValueError, StopIteration, struct.error):
        return None


class _Parser:
    """Reads the serialised form: a call is ``call f``, its arguments, ``end f``."""

    def __init__(self, words: Iterable[tuple[str, str]], literals: pa.RecordBatch) -> None:
        self._words, self._literals = iter(words), literals

    def node(self) -> Node:
        return self._node(*next(self._words))

    def _node(self, kind: str, word: str) -> Node:
        match kind:
            case "literal":
                column = self._literals.column(int(word))
                return Literal(column[0].as_py(), column.type)
            case "field_ref":
                return Column(word)
            case "nested_field_ref":
                path = [next(self._words)[1] for _ in range(int(word))]
                return Column(path[0], nested=True)
            case "call":
                return self._call(word)
        raise ValueError(kind)

    def _call(self, function: str) -> Node:
        arguments: list[Node] = []
        values: pa.Array | None = None
        for kind, word in self._words:
            if kind == "end":
                return Call(function, tuple(arguments), values)
            if kind != "options":
                arguments.append(self._node(kind, word))
            elif function == "is_in":
                values = self._literals.column(int(word))[0]["value_set"].values
        raise ValueError(function)


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
            return reduce(_either, (possible_values(one, column, arrow_type) for one in arguments))
        case Call("if_else", (condition, first, second)):
            chosen = (possible_values(one, column, arrow_type) for one in (condition, first))
            return _either(reduce(_both, chosen), possible_values(second, column, arrow_type))
        case Call("equal", (Column(name, False), Literal() as literal)) if name == column:
            return _exact([literal.value], literal.type, arrow_type)
        case Call("equal", (Literal() as literal, Column(name, False))) if name == column:
            return _exact([literal.value], literal.type, arrow_type)
        case Call("is_in", (Column(name, False),), values) if name == column and values is not None:
            return _exact(values.to_pylist(), values.type, arrow_type)
    return None


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _either(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return None if one is None or other is None else one | other


def _exact(values: Iterable[Any], given: pa.DataType, wanted: pa.DataType) -> frozenset[Any] | None:
    """Values that a column of type ``wanted`` can have, of those it is compared with; None where that is not plain."""
    if not _same_kind(given, wanted):
        return None
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


def _may_be_in(found: ColumnRange | None, values: pa.Array) -> bool:
    if found is None or _is_floating(found) or not _same_kind(values.type, found.type):
        return True
    if values.null_count and found.nulls != 0:
        return True  # NULL may be in a set
    if found.least is None:
        return not found.all_null
    return any(found.least <= value <= found.largest for value in values.to_pylist() if value is not None)
