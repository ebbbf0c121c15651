"""PySpark versions: an outbox runs on each one that the distribution allows, a job on one."""

from __future__ import annotations

import re
from importlib import import_module

from spark_ckpt.errors import EnvironmentUnfit

JOBS = "pyspark>=4.2.0,<4.3"
"""Requirement of the extra `jobs` in pyproject.toml; a test compares them."""
_OF_JOBS = (4, 2)
_OF_FORMAT = (4, 1)


def require_spark_of_jobs(what: str, version: str | None = None) -> None:
    """Raise `EnvironmentUnfit` unless `version` of PySpark can run `what`, a part of a job. Default: the one that runs."""
    version, found = _running(version)
    if found != _OF_JOBS:
        raise EnvironmentUnfit(
            f"PySpark {version} cannot run {what}: jobs need {JOBS}",
            hint="pip install 'spark-ckpt[jobs]', which brings that PySpark; an outbox (ckpt.Outbox) runs on this one",
            pyspark=version,
        )


def require_spark_of_format(version: str | None = None) -> None:
    """Raise `EnvironmentUnfit` unless `version` of PySpark can run `format("outbox")`. Default: the one that runs."""
    version, found = _running(version)
    if found < _OF_FORMAT:
        raise EnvironmentUnfit(
            f'PySpark {version} cannot run format("outbox"): its data sources cannot write Arrow batches, 4.1 and later can',
            hint="start the query with Outbox.start(writer), which runs on this PySpark",
            pyspark=version,
        )


def _running(version: str | None) -> tuple[str, tuple[int, ...]]:
    # Of the package and not of its distribution: a program under spark-submit has none.
    version = version or str(import_module("pyspark").__version__)
    return version, tuple(int(part) for part in re.findall(r"\d+", version)[:2])
