"""Pictures of worlds: hashable values that are equal for worlds of equal behaviour."""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType
from typing import Any, Generic, Protocol, TypeVar

from checkpoint_protocols.machine import STORY_LENGTH, Story

# -- Copies of worlds: constants, classes and functions are shared, everything else is copied.
#
# A copied machine starts an empty story. A frozen world is valid in one process only: it refers to shared objects by
# address.


_KEPT: dict[int, object] = {}
_FIELDS: dict[type, tuple[str, ...]] = {}


class HasConstants(Protocol):
    """A value that can be copied."""

    def shared(self) -> tuple[object, ...]:
        """Return the constants that copies share."""
        ...


ValueT = TypeVar("ValueT", bound=HasConstants)


class Frozen(Generic[ValueT]):
    """A frozen copy of a value; every `thaw` returns a new value."""

    def __init__(self, value: ValueT) -> None:
        buffer = io.BytesIO()
        _Pickler(buffer, value.shared()).dump(value)
        self.data = buffer.getvalue()

    def thaw(self) -> ValueT:
        """Return a new copy of the value."""
        thawed: ValueT = pickle.loads(self.data)  # noqa: S301 - nothing but what was pickled here
        return thawed


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, constants: tuple[object, ...]) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.constants = {id(constant) for constant in constants}

    def reducer_override(self, value: object) -> Any:
        # `_kept` is a function as well, and the reducer of every kept value: it must not be kept itself.
        if value is _kept:
            return NotImplemented
        kind = type(value)
        if id(value) in self.constants or kind is FunctionType or isinstance(value, type):
            # The entry keeps the value alive, so that its address stays its own for as long as a copy may name it.
            _KEPT[id(value)] = value
            return _kept, (id(value),)
        # a story is history only: two worlds that differ in it behave alike
        if kind is Story:
            return Story, ((), STORY_LENGTH)
        names = _fields_of(kind)
        return (_made, (kind, *[getattr(value, name) for name in names])) if names else NotImplemented


def _fields_of(kind: type) -> tuple[str, ...]:
    # kept: a frozen dataclass with slots lists its fields again whenever it copies itself
    if kind not in _FIELDS:
        _FIELDS[kind] = _asked_for_fields(kind)
    return _FIELDS[kind]


def _asked_for_fields(kind: type) -> tuple[str, ...]:
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen or not hasattr(kind, "__slots__"):
        return ()
    return tuple(field.name for field in fields(kind))


def _made(kind: type, *values: object) -> object:
    # without the constructor, which accepted the value before
    value: object = object.__new__(kind)
    for name, each in zip(_fields_of(kind), values, strict=True):
        object.__setattr__(value, name, each)
    return value


def _kept(address: int) -> object:
    return _KEPT[address]


HIDDEN = frozenset({"recent", "graph", "settings", "topology", "limits"})
"""Attributes of machines that do not affect their next steps: their history and their constants."""

UNORDERED = frozenset({"messages", "stores", "timers"})
"""Lists without a meaningful order: each element can be next."""


_PLAIN = frozenset({type(None), bool, int, str, float})
_ALSO_PLAIN = (int, str, float, type, Enum)


def canonical(value: Any) -> Hashable:
    """Return a picture of any value made of plain data, dataclasses and simple objects."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, _ALSO_PLAIN):
        plain: Hashable = value
        return plain
    if isinstance(value, list | tuple | deque):
        return tuple([canonical(each) for each in value])
    if isinstance(value, Mapping):
        # by their text, since keys of different types do not compare
        return tuple([(canonical(key), canonical(value[key])) for key in sorted(value, key=str)])
    if isinstance(value, set | frozenset):
        return unordered(value)
    # the class name separates machines whose attributes are equal
    return (kind.__name__, *(_named(name, getattr(value, name)) for name in _names(kind) or vars(value)))


def _names(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass; an empty tuple for other types."""
    if kind not in _PICTURED:
        found = fields(kind) if is_dataclass(kind) else ()
        _PICTURED[kind] = tuple(field.name for field in found if field.name not in HIDDEN)
    return _PICTURED[kind]


_PICTURED: dict[type, tuple[str, ...]] = {}


def unordered(values: Iterable[Any]) -> Hashable:
    """Return a picture of a collection without a meaningful order."""
    return tuple(sorted(map(canonical, values), key=str))


def _named(name: str, value: Any) -> Hashable:
    if name in HIDDEN:
        return name
    return (name, unordered(value) if name in UNORDERED else canonical(value))
