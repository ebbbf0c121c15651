"""The log file of Spark: the console shows one line per record, the file has the stacks.

Java reads the configuration of its logging at its start, so it is a Java option of the driver. A program that
`spark-submit` starts, or with a log4j configuration of its own, logs as the user configured.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pyspark

from spark_ckpt import jars
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.spark_internals.launching import is_under_spark_submit
from spark_ckpt.spark_internals.loggers import CONFIGURATION, FILE_PROPERTY

VARIABLE = "SPARK_CKPT_SPARK_LOG"
"""Environment variable: a file for Spark's log, or "console" for Spark's own logging."""
_KEPT = 20
_CONFIGURED = ("log4j2.properties", "log4j2.xml", "log4j2.yaml", "log4j2.json")


def options(own: str) -> str:
    """Return the Java options that give the driver a log file; empty if the user configures the logging.

    `own`: Java options of the user.
    """
    if "log4j" in own or is_under_spark_submit() or _is_configured() or os.environ.get(VARIABLE) == "console":
        return ""
    path = _path()
    # Java options are split at spaces, and the launcher knows quotes.
    if path is None:
        return ""
    return f'"-Dlog4j2.configurationFile={CONFIGURATION.as_uri()}" "-D{FILE_PROPERTY}={path}"'


def _is_configured() -> bool:
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))
    return any((folder / name).is_file() for name in _CONFIGURED)


def _path() -> Path | None:
    """Return the path of this process's log. The folder keeps the logs of the newest processes."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).absolute()
    try:
        folder = jars.cache_folder().parent / "logs"
        folder.mkdir(exist_ok=True)
    except (OSError, EnvironmentUnfit):
        return None
    for old in sorted(folder.glob("spark-*.log*"), key=_changed_s)[:-_KEPT]:
        # A job may run for months without a line, so the age alone proves nothing.
        if not _runs(old):
            with suppress(OSError):  # a start must not fail for an old log
                old.unlink()
    # By process: two drivers of one user would write into one file.
    return folder / f"spark-{os.getpid()}.log"


def _runs(log: Path) -> bool:
    """Return True if the process of this log may run."""
    try:
        os.kill(int(log.name.split(".")[0].removeprefix("spark-")), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _changed_s(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
