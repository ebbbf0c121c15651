"""An ordinary SparkSession with the jars and settings in place. Any other session will do as well whose Python workers are
this program's Python or its like: a job says so when it starts if they are not."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib import import_module

from pyspark.sql import SparkSession

from spark_ckpt import connectors, jars
from spark_ckpt.spark_internals.launching import is_under_spark_submit
from spark_ckpt.spark_internals.python_workers import DAEMON_MODULE, unix_sockets
from spark_ckpt.spark_session import class_archive
from spark_ckpt.spark_session.class_archive import DRIVER_OPTIONS
from spark_ckpt.spark_session.driver_jvm import launched_deaf

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
"""Java's optimising compiler at ten times its usual thresholds: a quarter of a starting driver's CPU went into optimising
code that ran for a second. What runs for every record gets there within the first batches all the same."""
_NEEDED_SOON = (
    "pydantic", "pyarrow.compute", "pyarrow.parquet", "pandas", "deltalake", "spark_ckpt.api.job", "spark_ckpt.driver.run",
)  # fmt: skip


def session(
    name: str, *connector: str, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Build or get a SparkSession; `connector`: names of those whose jars and settings it needs, as "kafka" and "delta".

    Jars are fetched once and kept. `spark-ckpt connectors` lists the names; a connector without jars needs no mention.
    Under `spark-submit` the master comes from there; alone it is `local[*]`. `conf` wins over our defaults. Classes come
    from the archive that `spark-ckpt prepare` makes. Raises `EnvironmentUnfit` if Java or a jar cannot be had,
    `ConnectorUnknown`, `ConnectorBroken` or `ConnectorTooNew` for a name.
    """
    chosen = [connectors.named(each) for each in dict.fromkeys(connector)]
    jars.find_java()
    # Workers must be this interpreter: another Python on the path would miss pyarrow and this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    here = (master or ("" if is_under_spark_submit() else "local[*]")).startswith("local")
    settings = _DEFAULTS | (unix_sockets(tempfile.gettempdir()) if here else {})
    settings |= connectors.spark_settings(chosen) | dict(conf or {})
    if paths := [str(path) for path in connectors.jar_paths(chosen)]:
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), *paths]))
    settings = _with_java_options(settings)
    builder = SparkSession.builder.appName(name)
    if master or not is_under_spark_submit():
        builder = builder.master(master or "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    if SparkSession.getActiveSession() is None:
        _import_meanwhile()
    with launched_deaf():
        return builder.getOrCreate()


def _with_java_options(settings: dict[str, str]) -> dict[str, str]:
    """Archived classes, if there are any, and late optimisation, each unless the user has options of his own about it."""
    own = settings.get(DRIVER_OPTIONS, "")
    archive = "" if "Archive" in own else class_archive.options()
    compiler = "" if "Tier" in own or "Compile" in own else _LATE_OPTIMISATION
    return settings | {DRIVER_OPTIONS: " ".join(filter(None, [own, archive, compiler]))}


def _import_meanwhile() -> None:
    """Load what a job needs next while Java starts, for which this process only waits."""
    threading.Thread(target=_import_needed_soon, name="ckpt-imports", daemon=True).start()


def _import_needed_soon() -> None:
    for name in _NEEDED_SOON:
        import_module(name)
