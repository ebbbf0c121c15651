"""Recognises the files of a traceback that belong to Spark. On driver and tasks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import py4j
import pyspark

from spark_ckpt.spark_internals.names import SparkName

NAMES = (
    SparkName(
        "pyspark.zip", "the layout of $SPARK_HOME (python/lib/pyspark.zip, python/lib/py4j-*-src.zip)", "is_sparks_file",
        "Spark's own lines stand in the user's part of a traceback",
    ),
)  # fmt: skip

# Zips of a cluster's Spark, and packages of another environment.
_ELSEWHERE = re.compile(
    r"[/\\]pyspark\.zip[/\\]|[/\\]py4j-[\w.-]+\.zip[/\\]|[/\\](?:(?:site|dist)-packages|python)[/\\](?:pyspark|py4j)[/\\]"
)
_HERE = tuple(str(Path(package.__file__ or os.curdir).parent) + os.sep for package in (pyspark, py4j))


def is_sparks_file(path: str) -> bool:
    """Return True if a file's path lies in PySpark or py4j, also in those of another machine."""
    return path.startswith(_HERE) or _ELSEWHERE.search(path) is not None
