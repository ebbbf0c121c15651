"""Delta connector of spark_ckpt: Delta tables as a source and a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_ckpt_delta.declared import CONNECTOR
    from spark_ckpt_delta.sink import DeltaSink
    from spark_ckpt_delta.source import DeltaSource
    from spark_ckpt_delta.staged import find_orphans, remove_orphans

__all__ = ["CONNECTOR", "DeltaSink", "DeltaSource", "find_orphans", "remove_orphans"]

_HOMES = {
    "CONNECTOR": "spark_ckpt_delta.declared",
    "DeltaSink": "spark_ckpt_delta.sink",
    "DeltaSource": "spark_ckpt_delta.source",
    "find_orphans": "spark_ckpt_delta.staged",
    "remove_orphans": "spark_ckpt_delta.staged",
}


def __getattr__(name: str) -> object:
    """Import a public name at first use: a session that needs only the jars loads neither the source nor the sink."""
    from importlib import import_module

    if name not in _HOMES:
        from spark_ckpt.errors import NameUnknown

        raise NameUnknown.of(__name__, name, __all__)
    return getattr(import_module(_HOMES[name]), name)
