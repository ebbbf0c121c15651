"""Rewind of plain PySpark queries, which are not jobs: plan, apply and undo a rollback, pin points, adopt a query.

A rewind rolls all queries back to one consistent point. Plan, apply and undo need no JVM. `PinListener` needs PySpark
and is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_rewind.pin_listener import PinListener

__all__ = ["PinListener"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'spark_rewind' has no attribute {name!r}")
    from spark_rewind.pin_listener import PinListener

    return PinListener
