"""Spark for tests. A module gets the session of the previous module if it has the same jars: starting and warming up Java is most
of a short module's cost. Settings, caches and queries of a module end with it. More jars need another Java process, since a running
one cannot load them; a session without jars can use a process with jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_ckpt.spark_internals.python_workers import DAEMON_MODULE
from spark_ckpt.spark_session import class_archive
from spark_ckpt.spark_session.class_archive import DRIVER_OPTIONS
from spark_ckpt.spark_session.session import session as new_session

SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Flags for a quick start on one or two processors; code that runs for a minute does not repay the optimising compiler's time."""
HEAP = "-XX:MetaspaceSize=320m -Xms640m -Xmn400m"
"""Heap of a driver. A small initial heap is collected twenty times in the first half minute, a tenth of its processor time."""
SUBMIT_ARGUMENTS = f"--properties-file {Path(__file__).with_name('spark-defaults.conf')} pyspark-shell"
"""PySpark settings for programs that a test starts: Spark's defaults. A settings folder (SPARK_CONF_DIR) is on the class path,
and Java uses no class archive of another class path."""
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",  # instead of 50, which tables of a few commits do not fill
    # Compiling costs a short query more than it saves. For programs: spark-defaults.conf
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Each worker would load pandas and pyarrow itself. With Spark's own daemon: test_worker_python.py
    DAEMON_MODULE: "spark_ckpt.tasks.python_daemon",
    # Each call of a column's function would search for its caller, and Java for seven classes that no jar has: 4 ms.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


@dataclass(frozen=True)
class _Idle:
    """A session that no module uses now. `jars`: the connectors of its jars, or empty."""

    jars: str
    session: SparkSession


_idle: _Idle | None = None
_jars_of_java: str | None = None
"""Jars of the running Java process, if it was started here: the next session with these jars, or without any, uses it."""
_OF_ANY_SESSION = ("spark.app.", "spark.master", "spark.submit.")
"""Settings that Java has from its start in each session here. The others are those of its first session."""


def plain_session(zone: str = "UTC", conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Two local cores, two shuffle partitions, no jars. `conf` is for settings of SQL. For `yield from` in a fixture."""
    with _lent("", _plain, {"spark.sql.session.timeZone": zone} | dict(conf or {})) as session:
        yield session


def connected_session(conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """As `plain_session`, made by `spark_ckpt.session` with the jars of all connectors, which do not disturb one another."""
    with _lent("kafka delta", _connected, conf or {}) as session:
        yield session


def ending(session: SparkSession) -> Iterator[SparkSession]:
    """A quiet session for one module, stopped with its JVM afterwards."""
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_jvm()


def end_idle_session() -> None:
    """End the idle session and its Java, if there is one."""
    global _idle
    if _idle is not None:
        _stop(_idle.session)
        _idle = None
        end_jvm()


def end_jvm() -> None:
    """End the JVM of the last session, if there is one, and wait for it: a running JVM cannot load jars of a later session. A
    session that a test left running ends too, so that later tests do not fail."""
    global _jars_of_java
    end_idle_session()
    _stop(SparkContext._active_spark_context)
    _jars_of_java, gateway = None, SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


def _stop(running: SparkSession | SparkContext | None) -> None:
    """Stop it, even if its Java has died, so that later modules do not fail."""
    with suppress(Py4JError, OSError):
        if running is not None:
            running.stop()
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()  # the first call only forgot its Java


def _death() -> str | None:
    """Exit code of the session's Java and its last output, if it ended by itself; None while it runs."""
    process = SparkContext._gateway.proc if SparkContext._gateway is not None else None
    if process is None or process.poll() is None:
        return None
    log = Path(f"hs_err_pid{process.pid}.log")
    words = log.read_text(errors="replace")[:4000] if log.exists() else "no output: was it killed for its memory?"
    return f"the tests' Java ended by itself with {process.returncode}\n{words}"


def _plain() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config(DRIVER_OPTIONS, f"{SMALL_JAVA} {HEAP} {class_archive.options()}")
    return builder.config(map=dict(SMALL)).getOrCreate()


def _connected() -> SparkSession:
    settings = SMALL | {DRIVER_OPTIONS: f"{SMALL_JAVA} {HEAP}"}
    return new_session("tests", "kafka", "delta", master="local[2]", conf=settings)


@contextmanager
def _lent(jars: str, make: Callable[[], SparkSession], conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Lend the idle session if it has these jars, else a new one; afterwards it is idle again, with its old settings."""
    global _idle
    session = _taken(jars) or _new(jars, make)
    before = session.conf.getAll
    for key, value in conf.items():
        session.conf.set(key, value)
    yield session
    if why := _death():
        end_jvm()
        raise RuntimeError(why)
    if _is_alive(session):
        _leave_as(session, before)
        _idle = _Idle(jars, session)


def _taken(jars: str) -> SparkSession | None:
    global _idle
    if _idle is None or _idle.jars != jars or not _is_alive(_idle.session):
        return None
    session, _idle = _idle.session, None
    return session


def _new(jars: str, make: Callable[[], SparkSession]) -> SparkSession:
    global _idle, _jars_of_java
    if _jars_of_java is None or jars not in ("", _jars_of_java) or _death():
        end_jvm()
        _jars_of_java = jars
    else:
        _idle = None  # it has ended, or has other jars
        _stop(SparkContext._active_spark_context)
        _forget_settings_of_start()
    session = make()
    session.sparkContext.setLogLevel("OFF")
    return session


def _forget_settings_of_start() -> None:
    """A context reads Java's properties, and those of its start are settings of the first session, such as Delta's catalog."""
    system = SparkContext._jvm.java.lang.System
    for name in list(system.getProperties().stringPropertyNames()):
        if name.startswith("spark.") and not name.startswith(_OF_ANY_SESSION):
            system.clearProperty(name)


def _is_alive(session: SparkSession) -> bool:
    try:
        return SparkContext._active_spark_context is not None and not session._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def _leave_as(session: SparkSession, before: Mapping[str, str]) -> None:
    """Stop queries, clear caches, and restore the settings."""
    for query in session.streams.active:
        query.stop()
    session.catalog.clearCache()
    now = session.conf.getAll
    for key in now.keys() - before.keys():
        session.conf.unset(key)
    for key, value in before.items():
        if now.get(key) != value:
            session.conf.set(key, value)
