"""PySpark versions: an outbox runs on each one that the distribution allows, a job on one."""

from __future__ import annotations

import re
from importlib import import_module

from spark_ckpt.errors import EnvironmentUnfit

JOBS = "pyspark>=4.2.0,<4.3"
"""Requirement of the extra `jobs` in pyproject.toml; a test compares them."""
_OF_JOBS = (4, 2)


def require_spark_of_jobs(what: str, version: str | None = None) -> None:
    """Raise `EnvironmentUnfit` unless `version` of PySpark can run `what`, a part of a job. Default: the one that runs."""
    # Of the package and not of its distribution: a program under spark-submit has none.
    version = version or str(import_module("pyspark").__version__)
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found != _OF_JOBS:
        raise EnvironmentUnfit(
            f"PySpark {version} cannot run {what}: jobs need {JOBS}",
            hint="pip install 'spark-ckpt[jobs]', which brings that PySpark; an outbox (ckpt.Outbox) runs on this one",
            pyspark=version,
        )
