"""Refuses unknown arguments of sources and sinks with the name that was meant, where Python would raise a `TypeError`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TypeVar

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.wording import did_you_mean, snake_case

C = TypeVar("C", bound=type)


def checks_arguments(elsewhere: Mapping[str, str] | None = None) -> Callable[[C], C]:
    """Return a class decorator: an unknown or a missing argument of the constructor raises `ConfigInvalid`.

    `elsewhere`: advice for names that other libraries have, such as Spark's options.
    """

    def decorated(cls: C) -> C:
        construct = cls.__init__  # type: ignore[misc]
        signature = inspect.signature(construct)
        known = [name for name in signature.parameters if name != "self"]

        @wraps(construct)
        def checked(self: object, *args: object, **named: object) -> None:
            for name in named:
                if name not in known:
                    raise ConfigInvalid(
                        f"{cls.__name__} has no argument '{name}'", hint=_advice(name, known, elsewhere or {})
                    )
            try:
                # Apart from the call: a TypeError that the constructor raises itself is no wrong argument.
                signature.bind(self, *args, **named)
            except TypeError as error:
                raise ConfigInvalid(
                    f"{cls.__name__}: {error}", hint=f"{cls.__name__}({', '.join(known)}): docs/connectors.md"
                ) from None
            construct(self, *args, **named)

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorated


def _advice(name: str, known: list[str], elsewhere: Mapping[str, str]) -> str:
    return (
        elsewhere.get(name)
        or did_you_mean(snake_case(name), known)
        or did_you_mean(name, known)
        or f"arguments: {', '.join(known)}"
    )
