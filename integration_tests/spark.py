"""Spark for tests. A module gets the session of the module before it, if that has the same jars: starting Java and warming it
up is most of what a short module costs. What the module sets, caches or leaves running ends with it. More jars need another Java
process, for they do not reach one that runs; a session without jars runs in one that has some."""

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
"""Up fast, on one or two processors; code that runs for a minute does not earn the optimising compiler's time."""
HEAP = "-XX:MetaspaceSize=320m -Xms640m -Xmn400m"
"""Of a driver. One that begins small is collected twenty times in the first half minute, a tenth of a driver's processor time."""
SUBMIT_ARGUMENTS = f"--properties-file {Path(__file__).with_name('spark-defaults.conf')} pyspark-shell"
"""PySpark's for programs that a test starts: Spark's defaults. A folder of settings (SPARK_CONF_DIR) would be on the class path,
and Java uses no class archive of another class path."""
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",  # of 50, which tables of a few commits do not fill
    # Compiling costs a short query more than it gains. For programs: spark-defaults.conf
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Each worker would load pandas and pyarrow by itself. With Spark's own daemon: test_worker_python.py
    DAEMON_MODULE: "spark_ckpt.tasks.python_daemon",
    # Each call of a column's function would look for its caller, and Java for seven classes that no jar has: 4 ms.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


@dataclass(frozen=True)
class _Idle:
    """A session that nobody uses now. `jars`: the connectors whose jars it has, or nothing."""

    jars: str
    session: SparkSession


_idle: _Idle | None = None
_jars_of_java: str | None = None
"""Jars of the Java process that runs, if it was started here: the next session with these jars, or without any, runs in it."""
_OF_ANY_SESSION = ("spark.app.", "spark.master", "spark.submit.")
"""Settings that Java has from its start in each session here. The others are those of its first session."""


def plain_session(zone: str = "UTC", conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Two local cores, two shuffle partitions, no jars. `conf` is for settings of SQL. For `yield from` in a fixture."""
    with _lent("", _plain, {"spark.sql.session.timeZone": zone} | dict(conf or {})) as session:
        yield session


def connected_session(conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """As `plain_session`, but as `spark_ckpt.session` makes it, with the jars of all connectors: who needs one minds no other."""
    with _lent("kafka delta", _connected, conf or {}) as session:
        yield session


def ending(session: SparkSession) -> Iterator[SparkSession]:
    """A quiet session of a module's own, stopped with its JVM afterwards."""
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_jvm()


def end_idle_session() -> None:
    """End the session that waits for a module to use it, and its Java, if there is one."""
    global _idle
    if _idle is not None:
        _stop(_idle.session)
        _idle = None
        end_jvm()


def end_jvm() -> None:
    """End the JVM of the last session, if there is one, and wait for it: jars of a later session do not reach it. A session that a
    test left behind ends too: the tests behind it are not to fail for that."""
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
    """Stop it, also where its Java has died: the modules behind are not to fail for that."""
    with suppress(Py4JError, OSError):
        if running is not None:
            running.stop()
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()  # the first time it forgot its Java


def _death() -> str | None:
    """How the Java of the session ended by itself, with the words that Java left; nothing if it lives."""
    process = SparkContext._gateway.proc if SparkContext._gateway is not None else None
    if process is None or process.poll() is None:
        return None
    told = Path(f"hs_err_pid{process.pid}.log")
    words = told.read_text(errors="replace")[:4000] if told.exists() else "it left no words: was it killed, for memory?"
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
    """The idle session if it has these jars, else a new one; idle again afterwards, as it was before."""
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
    """Stop what runs, forget what is cached, set the settings back."""
    for query in session.streams.active:
        query.stop()
    session.catalog.clearCache()
    now = session.conf.getAll
    for key in now.keys() - before.keys():
        session.conf.unset(key)
    for key, value in before.items():
        if now.get(key) != value:
            session.conf.set(key, value)
