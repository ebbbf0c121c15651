"""Pictures of worlds: hashable values that are equal for worlds of equal behaviour."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

HIDDEN = frozenset({"_story", "graph", "settings", "topology", "limits"})
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
        return tuple([(canonical(key), canonical(value[key])) for key in sorted(value, key=str)])
    if isinstance(value, set | frozenset):
        return unordered(value)
    # the class name separates machines whose attributes are equal
    return (kind.__name__, *(_named(name, getattr(value, name)) for name in _names(kind) or vars(value)))


def _names(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass; an empty tuple for other types."""
    if kind not in _FIELDS:
        found = fields(kind) if is_dataclass(kind) else ()
        _FIELDS[kind] = tuple(field.name for field in found if field.name not in HIDDEN)
    return _FIELDS[kind]


_FIELDS: dict[type, tuple[str, ...]] = {}


def of_attributes(value: object, but: Collection[str]) -> Hashable:
    """Return a picture of an object's attributes, without those in `but`."""
    return tuple(_named(name, each) for name, each in vars(value).items() if name not in but)


def unordered(values: Iterable[Any]) -> Hashable:
    """Return a picture of a collection without a meaningful order."""
    return tuple(sorted(map(canonical, values), key=str))


def _named(name: str, value: Any) -> Hashable:
    if name in HIDDEN:
        return name
    return (name, unordered(value) if name in UNORDERED else canonical(value))
