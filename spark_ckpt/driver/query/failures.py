"""Translates the failure of a query into a typed error: our errors keep their condition, Spark's are judged by
theirs.

An error that the same rows would cause again is final. All others (a killed worker, a lost executor, memory, network)
may pass, and another incarnation tries again.
"""

from __future__ import annotations

import builtins
import re
import sys
from textwrap import dedent
from traceback import walk_tb
from typing import Protocol

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, QueryContext, QueryContextType

from spark_ckpt import errors
from spark_ckpt.errors import (
    CkptError,
    EnvironmentUnfit,
    GraphInvalid,
    RunFailed,
    SparkStateChanged,
    StoreFull,
    StoreIoFailed,
    StoreReadOnly,
    WorkersNotStarted,
)
from spark_ckpt.spark_internals.captured_errors import causes_of, message_of, without_plan
from spark_ckpt.spark_internals.python_workers import START_TIMED_OUT, start_failure_said
from spark_ckpt.storage_errors import outage, refusal_said
from spark_ckpt.tasks.failures import (
    MAY_PASS,
    ExpressionFailed,
    OutputInvalid,
    UserFunctionFailed,
    UserFunctionHindered,
    bounded,
)
from spark_ckpt.tasks.user_frames import user_part, user_traceback

_TYPED = re.compile(r"\[(CKPT_[A-Z_]+)\] ([^\n]+)((?:\n  [^\n:]+:(?: [^\n]*|(?:\n    [^\n]*)+))*)")
_FIELD = re.compile(r"\n  ([^\n:]+):(?: ([^\n]*)|((?:\n    [^\n]*)+))")
_PYTHONS = re.compile(r"^(?P<kind>[\w.]*\w)(?:: (?P<said>.*))?$", re.MULTILINE)
_NAMED = re.compile(r"\S.*: \S|\[")
"""An error with a message; a bare class name (`java.io.EOFException`) has none."""
_HEADER = "Traceback (most recent call last):\n"
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}$")
_CONTEXT = re.compile(r"\n== .*", re.DOTALL)
_SHOWN_CHARS = 2000
_RAISED = re.compile(
    r"\b\w*(?:IO|FS|OS|FileSystem|Arrow|Spark|Runtime|Query)\w*(?:Exception|Error)\b|\berrno\b|\bos error\b", re.I
)
"""Line of a trace that names an exception: a record that contains "No space left on device" is no full disk."""
_JAVAS_FRAME = re.compile(r"^[\s:]*(?:Caused by: |Suppressed: )?")
_OF_DISKS = (StoreFull, StoreReadOnly, StoreIoFailed)
_HINT_DISKS = (
    "look at the disks of Spark's checkpoint (run_dir), its temporary files (spark.local.dir), the local cache (local_dir) "
    "and the store; a running job continues by itself when they work again"
)

_HINT_WORKERS = (
    "the host is too busy, or has too little memory: stop other programs, or give the job fewer tasks at a time (local[n], "
    "spark.executor.cores); a running job continues by itself; else start it again: it continues from its last epoch"
)

_SESSION_STOPPED = re.compile(
    r"^[\s:]*(?:Caused by: )?(?:[\w.$]+(?:Exception|Error): )?(?:Job \d+ cancelled because SparkContext was shut down"
    r"|Cannot call methods on a stopped SparkContext|RpcEnv (?:has been|already) stopped"
    r'|Cannot invoke "org\.apache\.spark\.api\.java\.JavaSparkContext\.sc\(\)")',
    re.MULTILINE,
)
_PYTHON = "PYTHON_EXCEPTION"
_SAME_AGAIN = ("22", "23", "P0", "42703", "42K09")
"""SQLSTATEs of errors that the same rows cause again: data exceptions, violated constraints, `raise_error`, unknown
columns, wrong types.
"""
_STATE_CHANGED = frozenset(
    {
        *(
            "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
            "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
        ),
        *("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"),
        *("STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION", "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"),
        *("STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE", "STATE_STORE_INVALID_CONFIG_AFTER_RESTART"),
        *("STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED", "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED"),
    }
)
"""Conditions of Spark if its operators, their order or their schemas are not those that wrote the state."""
_HINT_STATE = (
    "run the program that wrote it; for another one choose an epoch before the operators (job.start(restore=EPOCH)), or a new "
    "store; to begin with empty state, run the job once without Spark's operators and confirm it: "
    "job.start(accept_dropped_operator='spark operators')"
)
_STORES_MEET = "Can only upgrade readStore to writeStore"
_HINT_STORES = (
    "remove the coalesce after Spark's operators, or use repartition instead, or the HDFS-backed state store; plain Spark fails, "
    "too"
)
_RAISED_IN_SQL = "P0"
"""SQLSTATE of our errors from an expression (`raise_error`). A value in another error's text may look like one of
ours.
"""
_MODULE_MISSING = ("ModuleNotFoundError", "ImportError", "PySparkImportError")
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"


class QueryFailed(RunFailed):
    """Spark's query died; another incarnation may succeed."""

    condition = "CKPT_QUERY_FAILED"
    retriable = True


class JvmGone(RunFailed):
    """The driver's Java process ended while the program ran. Only a new start of the program can continue the job."""

    condition = "CKPT_JVM_GONE"


class SessionStopped(RunFailed):
    """The program stopped its Spark session while the job ran. Only a job on a new session can continue."""

    condition = "CKPT_SESSION_STOPPED"


class Query(Protocol):
    """The used part of a query; Spark's `StreamingQuery` has it."""

    @property
    def isActive(self) -> bool:
        """True if the query runs."""

    def exception(self) -> Exception | None:
        """Return the error that ended the query."""


def is_running(query: Query | None) -> bool:
    """Return true if Spark still runs the query. Raises `JvmGone` if the Java process does not answer."""
    try:
        return query is not None and query.isActive
    except (Py4JError, OSError) as error:
        raise _jvm_gone() from error


def failure_of(query: Query | None) -> CkptError:
    """Return the reason why the query no longer runs; `JvmGone` if the Java process ended."""
    try:
        cause = query.exception() if query is not None else None
    except (Py4JError, OSError):
        return _jvm_gone()
    if cause is None:
        return QueryFailed(
            "the streaming query stopped, but the job was not asked to stop",
            hint="look for StreamingQuery.stop in the program",
        )
    return cause if isinstance(cause, CkptError) else failure_by(cause)


def failure_by(error: Exception) -> CkptError:
    """Return the typed error of a Spark error.

    The conditions of the error and its causes decide; its text decides if there is no condition.
    """
    try:
        chain = list(causes_of(error))
        found = next(filter(None, map(_judged, chain)), None)
        return found or _untyped(chain, error)
    except (Py4JError, OSError):  # the Java process is gone, and with it the error's details
        return failure_in(str(error))


def failure_in(text: str) -> CkptError:
    """Return the typed error in Spark's message, or else the message itself, shortened for people."""
    text = without_plan(text)
    return (
        _typed(text)
        or _disk_failure(text)
        or _workers_failure(text)
        or _stores_met(text)
        or _session_stopped(text)
        or QueryFailed(_shortened(text), hint="the full trace is in Spark's log")
    )


def typed(error: BaseException) -> CkptError:
    """Return the error of an incarnation as a typed one, independent of the libraries below."""
    if isinstance(error, CkptError):
        return error
    # First, because errors of py4j's sockets are OSErrors and would pass for those of a disk.
    if _nobody_answers(error):
        return _jvm_gone()
    # A disk or the network of the driver itself, met outside of the store.
    if isinstance(error, OSError):
        return outage(error.filename if isinstance(error.filename, str) else "this machine", error)
    said = str(error)
    trace = user_traceback(error) or None  # most likely in the code of a source or sink
    return (
        _typed(said)
        or _disk_failure(said)
        or _workers_failure(said)
        or _session_stopped(said)
        or RunFailed(f"{type(error).__name__}: {said}", traceback=trace)
    )


def _jvm_gone() -> JvmGone:
    return JvmGone(
        "Spark's Java process has ended",
        hint="start the program again; if a signal ended both, see docs/operations.md",
    )


def _nobody_answers(error: BaseException) -> bool:
    """Return true if Java's end of the connection is gone.

    py4j has an error for it, but also lets its sockets' errors through.
    """
    if isinstance(error, Py4JNetworkError):
        return True
    raised_in = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, OSError) and any(name.startswith("py4j.") for name in raised_in)


def _judged(error: BaseException) -> CkptError | None:
    """Return our error if this one explains the failure; None if it may pass, or only reports another one."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    if not isinstance(error, PySparkException) or condition is None:
        return None
    # The host is too busy, which passes; counted as a failed epoch it would end the job after some.
    if condition == START_TIMED_OUT:
        return _workers_failure(condition)
    if condition == _PYTHON:
        text = (error.getMessageParameters() or {}).get("traceback") or message_of(error)
        return _typed(text) or _disk_failure(text) or _python_failure(text)
    if condition.partition(".")[0] in _STATE_CHANGED:  # a sub-condition follows the dot
        what = _SQLSTATE.sub("", message_of(error).strip()).removeprefix(f"[{condition}] ")
        return SparkStateChanged(
            f"Spark cannot continue with the state of its operators: {what[:_SHOWN_CHARS]}",
            spark=condition,
            hint=_HINT_STATE,
        )
    state = error.getSqlState() or ""
    # All other conditions may pass (a lost executor, memory, network), and the cause below may say more.
    if not state.startswith(_SAME_AGAIN):
        return None
    ours = _typed(message_of(error)) if state.startswith(_RAISED_IN_SQL) else None
    return ours or _expression_failed(error, condition)


def _untyped(chain: list[BaseException], error: Exception) -> CkptError:
    """Return the typed error of a failure that reaches Spark only as text, for example of a Python data source."""
    texts = [without_plan(message_of(each)) for each in chain]
    # Each question goes to the whole chain before the next one: a cause may say more than the error around it.
    for text in texts:
        if (typed := _typed(text)) is not None:
            return typed
    for text in (*texts, without_plan(str(error))):
        if (failed := _disk_failure(text)) is not None:
            return failed
    for text in texts:
        if (found := _workers_failure(text) or _stores_met(text) or _session_stopped(text)) is not None:
            return found
    for text in texts:
        # Without the header, any line of a Java trace would pass for Python's last line.
        if _HEADER in text and (failed := _python_failure(text)) is not None:
            return failed
    # The deepest cause that says something: a bare class name explains nothing.
    said = next((text for text in reversed(texts) if _NAMED.match(text)), None) or next(
        filter(str.strip, texts), str(error)
    )
    return QueryFailed(_shortened(said), hint="the full trace is in Spark's log")


def _typed(text: str) -> CkptError | None:
    found = _TYPED.search(text)
    if found is None:
        return None
    # A task's error crosses Java as text, and is the same class again here: the restart policy judges by it.
    error = _class_of(found[1])(_SQLSTATE.sub("", found[2].strip()))
    for name, beside, below in _FIELD.findall(found[3]):
        value = beside or dedent(below).strip("\n")
        if name == "next":
            error.hint = value
        else:
            error.context[name] = value
    return error


def _disk_failure(text: str) -> CkptError | None:
    """Return the error of a full or failed disk in a trace of Java or Python.

    The trace does not name the folder: Spark writes to several.
    """
    # Line by line: only one that names an exception counts, since records in the text may speak of disks as well.
    for line in text.splitlines():
        refusal = refusal_said(line) if _RAISED.search(line) else None
        if refusal is not None and refusal.kind in _OF_DISKS:
            said = _JAVAS_FRAME.sub("", line)[:_SHOWN_CHARS]
            return refusal.kind(f"{refusal.meaning}: {said}", hint=_HINT_DISKS)
    return None


def _workers_failure(text: str) -> WorkersNotStarted | None:
    """Return the error after Spark's limit on the start of a Python process, which no setting changes. The job is not
    at fault.
    """
    said = start_failure_said(text)
    if said is None:
        return None
    return WorkersNotStarted(f"Spark could not start its Python workers: {said[:_SHOWN_CHARS]}", hint=_HINT_WORKERS)


def _stores_met(text: str) -> GraphInvalid | None:
    """Return the error of a task that runs an aggregation of Spark and then another stateful operator, on RocksDB.

    A task keeps the store that its aggregation has read until the task ends (Spark's `StateStoreThreadLocalTracker`). The
    next operator in the task takes it for its own, and fails. The same batch fails again.
    """
    if _STORES_MEET not in text:
        return None
    return GraphInvalid(
        "one task runs several of Spark's stateful operators, and RocksDB mixes up their state", hint=_HINT_STORES
    )


def _session_stopped(text: str) -> SessionStopped | None:
    """Return the error of a job whose Spark session ended: each further incarnation would fail, with other texts."""
    if _SESSION_STOPPED.search(text) is None:
        return None
    return SessionStopped(
        "the Spark session was stopped while the job ran",
        hint="call run.stop() before spark.stop(); to continue, make a session and start the job again: it continues from its "
        "last epoch",
    )


def _class_of(condition: str) -> type[CkptError]:
    # Subclasses are searched, not a fixed list: connectors have errors of their own.
    kinds = [CkptError]
    while kinds:
        kind = kinds.pop()
        if kind.condition == condition:
            return kind
        kinds += kind.__subclasses__()
    return errors.RunFailed  # of a module that this process has not imported


def _python_failure(text: str) -> CkptError | None:
    """Return the error of a user function that Spark called itself (a UDF, `mapInPandas`), or of its result; None
    otherwise.
    """
    # The last traceback is the error that reached Spark; earlier ones are its causes.
    raised = _PYTHONS.search(text.rpartition(_HEADER)[2])
    if raised is None:
        return None
    kind, said = raised["kind"], raised["said"] or ""
    name = kind.rpartition(".")[2]
    # With frames of the program its code is at fault, else Spark's conversion or the installation.
    if frames := user_part(text):
        failed = UserFunctionHindered if _may_pass(kind) else UserFunctionFailed
        return failed(
            f"a Python function of the stream raised {name}: {bounded(said)}",
            traceback=frames,
            hint="fix the function or the record; the epoch is not committed and the batch will be replayed",
        )
    if name in _MODULE_MISSING or _OTHER_PYTHON in said:
        return EnvironmentUnfit(
            f"Spark's Python workers cannot run the stream's functions: {said[:_SHOWN_CHARS]}",
            hint="give the workers this program's Python and modules: PYSPARK_PYTHON or spark.pyspark.python, --py-files",
        )
    if kind.startswith("pyspark."):
        return OutputInvalid(
            f"Spark cannot take what a Python function of the stream returned: {said[:_SHOWN_CHARS]}",
            hint="return the declared type",
        )
    return None


def _may_pass(kind: str) -> bool:
    """Return true if a worker's exception class, known by name, is a transient one. Imports nothing."""
    module, _, name = kind.rpartition(".")
    # Looked up and never imported: the class is named by a text, and an import would run code of that name.
    found = getattr(sys.modules.get(module, None) if module else builtins, name, None)
    return isinstance(found, type) and issubclass(found, MAY_PASS)


def _expression_failed(error: PySparkException, condition: str) -> ExpressionFailed:
    contexts = error.getQueryContext()
    what = _SQLSTATE.sub("", _CONTEXT.sub("", message_of(error)).strip()).removeprefix(f"[{condition}] ")
    return ExpressionFailed(
        what[:_SHOWN_CHARS],
        spark=condition,
        expression=contexts[0].fragment()[:_SHOWN_CHARS] if contexts else None,
        at=_call_site(contexts[0]) if contexts else None,
        hint="fix the expression or filter such rows; the epoch is not committed and the batch will be replayed",
    )


def _call_site(context: QueryContext) -> str | None:
    """Return the file and line that created the expression; an SQL text has none."""
    if context.contextType() is not QueryContextType.DataFrame:
        return None
    site = context.callSite().strip()
    return None if not site or site.startswith("java.") else site


def _shortened(text: str) -> str:
    """Return the last line of a Python traceback, or else the first line."""
    _, _, traceback = text.rpartition(_HEADER)
    raised = _PYTHONS.search(traceback) if traceback != text else None
    return (raised[0] if raised else text.strip().split("\n", 1)[0])[:_SHOWN_CHARS]
