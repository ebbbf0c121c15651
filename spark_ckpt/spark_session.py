"""An ordinary SparkSession with the jars and settings in place. Any other session will do as well."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal

from pyspark.sql import SparkSession

from spark_ckpt import class_archive, jars

Bundle = Literal["kafka", "delta"]
_DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "spark_ckpt.python_daemon",
}
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def session(
    name: str, *bundles: Bundle, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Build or get a SparkSession; `bundles` are "kafka" and "delta", whose jars are fetched once and kept.

    Under `spark-submit` the master comes from there; alone it is `local[*]`. `conf` wins over our defaults. Raises
    `EnvironmentUnfit` if Java or a jar cannot be had. Classes come from the archive that `spark-ckpt prepare` makes.
    """
    jars.find_java()
    # Workers must be this interpreter: another Python on the path would miss pyarrow and this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = _DEFAULTS | (_DELTA if "delta" in bundles else {}) | dict(conf or {})
    paths = [str(path) for bundle in bundles for path in jars.resolve(bundle)]
    if paths:
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), *dict.fromkeys(paths)]))
    settings = _with_class_archive(settings)
    builder = SparkSession.builder.appName(name)
    if master or "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master(master or "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _with_class_archive(settings: dict[str, str]) -> dict[str, str]:
    """The driver maps archived classes, if there are any and the user has no archive of his own."""
    own, ours = settings.get(class_archive.DRIVER_OPTIONS, ""), class_archive.options()
    if not ours or "Archive" in own:
        return settings
    return settings | {class_archive.DRIVER_OPTIONS: f"{own} {ours}".strip()}
