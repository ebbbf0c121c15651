"""Transport of a value from the driver into another Python process of Spark. On the driver."""

from __future__ import annotations

import pickle
from typing import TypeVar, cast

from pyspark import cloudpickle

from spark_ckpt.spark_internals.names import SparkName

NAMES = (
    SparkName(
        "pyspark.cloudpickle", "pyspark.cloudpickle (python/pyspark/cloudpickle/__init__.py)", "shipped",
        "a connector's readers cannot be tested without a session",
    ),
)  # fmt: skip

T = TypeVar("T")


def shipped(value: T) -> T:
    """Return the value as a task, or a Python process that Spark runs on the driver, receives it."""
    text: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return cast("T", pickle.loads(text))  # noqa: S301 - pickled in the line above
