"""Copies of worlds: constants, classes and functions are kept, everything else is a value of its own.

Within one process only: a frozen world refers to what it keeps by address.
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any, Generic, Protocol, TypeVar

_KEPT: dict[int, object] = {}


class HasConstants(Protocol):
    """What can be copied."""

    def shared(self) -> tuple[object, ...]:
        """Constants."""
        ...


ValueT = TypeVar("ValueT", bound=HasConstants)


class Frozen(Generic[ValueT]):
    """A value as it was; every `thaw` is a new one."""

    def __init__(self, value: ValueT) -> None:
        buffer = io.BytesIO()
        _Pickler(buffer, value.shared()).dump(value)
        self.data = buffer.getvalue()

    def thaw(self) -> ValueT:
        """The value again."""
        thawed: ValueT = pickle.loads(self.data)  # noqa: S301 - nothing but what was pickled here
        return thawed


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, constants: tuple[object, ...]) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.constants = {id(constant) for constant in constants}

    def reducer_override(self, value: object) -> Any:
        if value is _kept:
            return NotImplemented
        if id(value) in self.constants or isinstance(value, type | FunctionType):
            _KEPT[id(value)] = value
            return _kept, (id(value),)
        return NotImplemented


def _kept(address: int) -> object:
    return _KEPT[address]
