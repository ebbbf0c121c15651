"""Pictures of worlds: hashable values that are equal for worlds that behave alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

HIDDEN = frozenset({"_story", "graph", "settings", "topology", "limits"})
"""Attributes of machines that do not change what they do next: their history and their constants."""

UNORDERED = frozenset({"messages", "stores", "timers"})
"""Lists whose order means nothing: any of them can be next."""


_PLAIN = frozenset({type(None), bool, int, str, float})
_ALSO_PLAIN = (int, str, float, type, Enum)


def canonical(value: Any) -> Hashable:
    """A picture of any value made of plain data, dataclasses and simple objects."""
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
    return (kind.__name__, *(_named(name, getattr(value, name)) for name in _names(kind) or vars(value)))


def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; nothing for others."""
    if kind not in _FIELDS:
        found = fields(kind) if is_dataclass(kind) else ()
        _FIELDS[kind] = tuple(field.name for field in found if field.name not in HIDDEN)
    return _FIELDS[kind]


_FIELDS: dict[type, tuple[str, ...]] = {}


def of_attributes(value: object, but: Collection[str]) -> Hashable:
    """A picture of an object's attributes except some."""
    return tuple(_named(name, each) for name, each in vars(value).items() if name not in but)


def unordered(values: Iterable[Any]) -> Hashable:
    """A picture of a collection whose order means nothing."""
    return tuple(sorted(map(canonical, values), key=str))


def _named(name: str, value: Any) -> Hashable:
    if name in HIDDEN:
        return name
    return (name, unordered(value) if name in UNORDERED else canonical(value))
