"""Creation of an ordinary SparkSession with jars and settings in place.

Any other session works, too, if its Python workers are this program's Python or an equal one. A job checks that at its
start.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

from pyspark.sql import SparkSession

from spark_ckpt import connectors, jars
from spark_ckpt.spark_internals.launching import is_under_spark_submit, launches_run_first
from spark_ckpt.spark_internals.python_workers import DAEMON_MODULE, unix_sockets
from spark_ckpt.spark_session import class_archive, driver_log
from spark_ckpt.spark_session.class_archive import DRIVER_OPTIONS
from spark_ckpt.spark_session.console import tidy
from spark_ckpt.spark_versions import require_spark_of_jobs
from spark_ckpt.temporary_folder import TemporaryFolder

_IGNORED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def launched_deaf() -> Iterator[None]:
    """Make a JVM that PySpark launches inside this context ignore SIGINT and SIGTERM."""
    with launches_run_first(_ignore):
        yield


def _ignore() -> None:
    # In the child, between fork and exec.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


_DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    DAEMON_MODULE: "spark_ckpt.tasks.python_daemon",
}
_LATE_OPTIMISATION = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Java's optimising compiler at ten times its usual thresholds.

A starting driver spent a quarter of its CPU on optimising code that ran for a second. Code that runs for every record
still reaches the thresholds within the first batches.
"""
_NEEDED_SOON = (
    "pydantic", "pyarrow.compute", "pyarrow.parquet", "pandas", "deltalake", "spark_ckpt.api.job", "spark_ckpt.driver.run",
)  # fmt: skip


def session(
    name: str, *connector: str, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Build or get a SparkSession.

    - `name`: name of the application.
    - `connector`: names of the connectors whose jars and settings it needs, e.g. "kafka" and "delta". `spark-ckpt
      connectors` lists the names; a connector without jars need not be given. Jars are fetched once and kept.
    - `master`: Spark master. Default: the one of `spark-submit`, else `local[*]`.
    - `conf`: Spark settings that win over the defaults here.

    Classes come from the archive that `spark-ckpt prepare` creates. Raises `EnvironmentUnfit` if Java or a jar is not
    available and on a PySpark that jobs do not run on, `ConnectorUnknown`, `ConnectorBroken` or `ConnectorTooNew` for a name.
    """
    require_spark_of_jobs("ckpt.session")
    chosen = [connectors.named(each) for each in dict.fromkeys(connector)]
    jars.find_java()
    # Workers must be this interpreter: another Python on the path would miss pyarrow and this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    here = (master or ("" if is_under_spark_submit() else "local[*]")).startswith("local")
    # Unix sockets are on one host, and so are all workers of a local master.
    settings = _DEFAULTS | (_sockets() if here else {})
    # The user's settings come last and win.
    settings |= connectors.spark_settings(chosen) | dict(conf or {})
    if paths := [str(path) for path in connectors.jar_paths(chosen)]:
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), *paths]))
    settings = _with_java_options(settings)
    builder = SparkSession.builder.appName(name)
    if master or not is_under_spark_submit():
        builder = builder.master(master or "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    # With a session Java runs already, and there is nothing to wait for.
    if SparkSession.getActiveSession() is None:
        threading.Thread(target=_import_needed_soon, name="ckpt-imports", daemon=True).start()
    # Ctrl-C and a signal to the process group reach Java as well, which would end before the final epoch is taken.
    with launched_deaf():
        spark = builder.getOrCreate()
    tidy(spark)
    return spark


def _sockets() -> dict[str, str]:
    """Return the settings of the workers' sockets; a killed Java leaves them, so they get a folder that is deleted then."""
    # A temporary folder with a long path may leave room for the sockets, but not for a folder of their own.
    return unix_sockets(str(_socket_folder().path)) or unix_sockets(tempfile.gettempdir())


@functools.cache
def _socket_folder() -> TemporaryFolder:
    return TemporaryFolder("sockets")


def _with_java_options(settings: dict[str, str]) -> dict[str, str]:
    """Add class archive, if there is one, late optimisation and log file, each unless the user has own options for it."""
    own = settings.get(DRIVER_OPTIONS, "")
    archive = "" if "Archive" in own else class_archive.options()
    compiler = "" if "Tier" in own or "Compile" in own else _LATE_OPTIMISATION
    return settings | {DRIVER_OPTIONS: " ".join(filter(None, [own, archive, compiler, driver_log.options(own)]))}


def _import_needed_soon() -> None:
    for name in _NEEDED_SOON:
        import_module(name)
