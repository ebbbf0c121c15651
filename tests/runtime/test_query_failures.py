"""The message of a dead query becomes one of our errors, with its condition, its fields and its hint."""

from __future__ import annotations

import errno

import pytest
from py4j.clientserver import ClientServerConnection, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayProperty
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException

from spark_ckpt.driver.query.failures import (
    JvmGone,
    QueryFailed,
    SessionStopped,
    failure_by,
    failure_in,
    failure_of,
    typed,
)
from spark_ckpt.errors import (
    BadRecord,
    CkptError,
    EnvironmentUnfit,
    Fenced,
    GraphInvalid,
    RunFailed,
    SourceInvalid,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    WorkersNotStarted,
)
from spark_ckpt.tasks.failures import ExpressionFailed, OutputInvalid, UserFunctionFailed, UserFunctionHindered

# As Spark 4.2 prints them; paths shortened.
USER_FUNCTION = """[STREAM_FAILED] Query [id = 46b1, runId = 7c2d] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. Reason: \
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/lib/spark_ckpt/tasks/group_host.py", line 101, in run
    yield from _GroupCall(self, int(key[0]), state, reports).run(frames)
  File "/lib/spark_ckpt/tasks/operators/keyed_function.py", line 166, in _call
    raise user_function_failed(self._binding.name, key, error) from error
spark_ckpt.tasks.failures.UserFunctionFailed: [CKPT_USER_FUNCTION_FAILED] the function of operator 'totals' raised \
ZeroDivisionError: 'division by zero'
  operator: totals
  key: ('d', datetime.date(2024, 1, 1))
  next: fix the function or the record; the epoch is not committed and the batch will be replayed

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\tat org.apache.spark.sql.execution.python.streaming.ApplyInPandasWithStatePythonRunner$$anon$2.read(X.scala:209)
Caused by: java.lang.IllegalStateException: SparkContext has been shutdown
 SQLSTATE: 39000"""

RAISED_IN_SQL = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
Job aborted due to stage failure: \
Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): \
org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] [CKPT_BAD_RECORD] a record could not be parsed: \
{"topic":"t","partition":0,"offset":17,"reason":"not valid json","record":"{\\"k\\": [CKPT_"} SQLSTATE: P0001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2764)"""

PLAIN_PYTHON = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
Traceback (most recent call last):
  File "/lib/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/home/user/job.py", line 7, in enrich
    return rates[currency]
KeyError: 'XYZ'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/user/job.py", line 9, in enrich
    raise my.errors.UnknownCurrencyError("XYZ") from None
my.errors.UnknownCurrencyError: no rate for XYZ
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)"""

WITH_PLAN = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
File file:/store/runs/1/stage/state/0/1 does not exist SQLSTATE: XXKST
=== Streaming Query ===
Identifier: job/1 [id = 1, runId = 2]
Logical Plan:
Project [CASE WHEN isnull(r#1) THEN cast(raise_error(USER_RAISED_EXCEPTION, map(errorMessage, concat(\
[CKPT_BAD_RECORD] a record could not be parsed: , to_json(struct(topic, topic#5)))), NullType) END AS r#2]
"""

JAVA = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
Set(orders-0) are gone. Some data may have been missed.
\tat org.apache.spark.sql.kafka010.KafkaMicroBatchStream.planInputPartitions(KafkaMicroBatchStream.scala:229)
Caused by: java.lang.IllegalStateException: Set(orders-0) are gone."""


def test_a_typed_error_of_a_task_keeps_condition_fields_and_hint():
    error = failure_in(USER_FUNCTION)
    assert type(error) is UserFunctionFailed
    assert error.what == "the function of operator 'totals' raised ZeroDivisionError: 'division by zero'"
    assert error.context == {"operator": "totals", "key": "('d', datetime.date(2024, 1, 1))"}
    assert error.hint.startswith("fix the function or the record")
    assert not error.retriable


def test_a_traceback_comes_back_from_a_worker_with_its_lines():
    original = UserFunctionFailed(
        "it raised", operator="totals", traceback='File "j.py", line 1, in f\n  1 / 0\nX: y', hint="fix: it"
    )
    error = failure_in(
        f"An exception was thrown:\nTraceback (most recent call last):\n  x\nE: {original}\n\n\tat org.apache.X"
    )
    assert (error.context, error.hint) == (original.context, original.hint)


class JavaError(PySparkException):
    """A Java error as PySpark raises it: a condition, an SQLSTATE, and a cause."""

    def __init__(self, condition=None, state=None, message="", cause=None):
        super().__init__(message, errorClass=None, messageParameters=None)
        self._condition, self._state, self._desc, self._cause = condition, state, message, cause

    def getCondition(self):
        return self._condition

    def getSqlState(self):
        return self._state

    def getMessageParameters(self):
        return {"traceback": self._desc} if self._condition == "PYTHON_EXCEPTION" else {}

    def getQueryContext(self):
        return []


@pytest.mark.parametrize(
    ("condition", "state", "final"),
    [
        ("DIVIDE_BY_ZERO", "22012", True),
        ("CAST_INVALID_INPUT", "22018", True),
        ("USER_RAISED_EXCEPTION", "P0001", True),
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703", True),
        ("UNABLE_TO_ACQUIRE_MEMORY", "53200", False),
        ("CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT", "58030", False),
        ("FAILED_READ_FILE.FILE_NOT_EXIST", "KD001", False),
        ("INTERNAL_ERROR", "XX000", False),
        (None, None, False),
    ],
)
def test_sparks_conditions_separate_final_failures_from_retriable_ones(condition, state, final):
    alone = JavaError(condition, state, f"[{condition}] said. SQLSTATE: {state}")
    for error in (alone, JavaError(message="Job aborted due to stage failure: Task 0 failed", cause=alone)):
        found = failure_by(error)
        assert found.retriable is not final
        assert (type(found) is ExpressionFailed) is final
        assert not final or (found.what, found.context) == ("said.", {"spark": condition})


def test_a_value_that_looks_like_an_error_of_ours_is_none():
    message = "[CAST_INVALID_INPUT] The value '[CKPT_FENCED] x' cannot be cast SQLSTATE: 22018"
    assert type(failure_by(JavaError("CAST_INVALID_INPUT", "22018", message))) is ExpressionFailed


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("ValueError: no", UserFunctionFailed),
        ("rates.errors.Unknown: no", UserFunctionFailed),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", UserFunctionHindered),
        ("MemoryError", UserFunctionHindered),
        ("urllib.error.URLError: <urlopen error timed out>", UserFunctionHindered),
    ],
)
def test_a_function_that_spark_runs_is_classified_by_its_exception(raised, kind):
    import urllib.error  # noqa: F401 - what the program has not imported is not known

    text = f'Traceback (most recent call last):\n  File "/home/ann/job.py", line 7, in enrich\n    ask()\n{raised}\n'
    found = failure_by(JavaError("PYTHON_EXCEPTION", "38000", text))
    assert type(found) is kind
    assert 'File "/home/ann/job.py", line 7, in enrich' in found.context["traceback"]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (
            "pyspark.errors.exceptions.base.PySparkValueError: Failed to convert the value of the column 'v'",
            OutputInvalid,
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.11 and 3.12",
            EnvironmentUnfit,
        ),
        ("ModuleNotFoundError: No module named 'rates'", EnvironmentUnfit),
        ("EOFError", QueryFailed),
    ],
)
def test_errors_of_a_worker_outside_of_the_function_are_classified(raised, kind):
    worker = '  File "/s/python/lib/pyspark.zip/pyspark/worker.py", line 1, in main'
    text = f"Traceback (most recent call last):\n{worker}\n    x()\n{raised}\n"
    assert type(failure_by(JavaError("PYTHON_EXCEPTION", "38000", text))) is kind


def test_a_killed_worker_is_recognized_by_sparks_message():
    texts = [
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).",
        "java.io.EOFException",
    ]
    error = failure_by(
        JavaError(message=texts[0], cause=JavaError(message=texts[1], cause=JavaError(message=texts[2])))
    )
    assert (type(error), error.retriable) == (QueryFailed, True)
    assert "Python worker exited unexpectedly" in error.what


LATE = "Timed out while waiting for the Python worker to connect back"
LATE_SIMPLE = f"""Job aborted due to stage failure: Task 1 in stage 4.0 failed 1 times, most recent failure: Lost task 1.0 in \
stage 4.0 (TID 9) (host executor driver): org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:320)
Caused by: java.net.SocketTimeoutException: {LATE}"""


@pytest.mark.parametrize(
    "text",
    [
        LATE_SIMPLE,
        "Python worker failed to connect back.",
        f"{LATE} after 60000 ms",
        f"An error occurred while calling o55.load.\n: java.net.SocketTimeoutException: {LATE} after 60000 ms\n\tat X",
        "java.lang.IllegalStateException: Python daemon failed to launch worker with code -11",
        "java.lang.IllegalStateException: Python daemon failed to launch worker.",
        "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE] Streaming Runner initialization failed.",
    ],
)
def test_a_worker_that_does_not_start_in_time_is_an_outage_and_not_the_jobs_failure(text):
    for error in (failure_in(text), failure_by(JavaError(message="Query terminated", cause=JavaError(message=text))),
                  typed(RuntimeError(text))):  # fmt: skip
        assert (type(error), error.passes, "max_failed" in str(error)) == (WorkersNotStarted, True, False)
        assert "start it again" in error.hint


def test_the_runner_of_a_source_that_does_not_start_in_time_is_an_outage():
    late = JavaError(
        "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE", "XXKST", "Streaming Runner initialization failed."
    )
    assert type(failure_by(late)) is WorkersNotStarted


@pytest.mark.parametrize(
    "text",
    [
        f"[CAST_INVALID_INPUT] The value '{LATE}' cannot be cast",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).",
        'java.io.IOException: Cannot run program "python9": error=2, No such file or directory',
    ],
)
def test_other_failures_are_not_taken_for_a_late_worker(text):
    assert not failure_in(text).passes


def test_an_error_raised_in_sql_is_typed_and_names_the_position():
    error = failure_in(RAISED_IN_SQL)
    assert type(error) is BadRecord
    assert '"offset":17' in error.what
    assert "SQLSTATE" not in error.what


def test_every_error_of_ours_comes_back_as_itself():
    for original in (Fenced("newer", hint="end it", holder="x"), SourceInvalid("gone", topic="t")):
        found = failure_in(f"Query terminated with exception: x.Y: {original}\n\n\tat org.apache.X")
        assert (type(found), found.what, found.hint) == (type(original), original.what, original.hint)
        assert found.context == original.context


def test_an_unknown_condition_is_not_retried():
    error = failure_in("x: [CKPT_FROM_THE_FUTURE] what happened\n  epoch: 7")
    assert type(error) is RunFailed
    assert (error.what, error.context, error.retriable) == ("what happened", {"epoch": "7"}, False)


def test_an_untyped_python_error_is_its_last_line():
    error = failure_in(PLAIN_PYTHON)
    assert type(error) is QueryFailed
    assert error.what == "my.errors.UnknownCurrencyError: no rate for XYZ"
    assert error.retriable


def test_a_java_error_is_its_first_line():
    error = failure_in(JAVA)
    assert "Set(orders-0) are gone" in error.what
    assert "\n" not in error.what
    assert "\tat " not in str(error)


def test_what_is_shown_is_bounded():
    assert len(failure_in("x" * 100_000).what) <= 2000


@pytest.mark.parametrize("text", ["", "\n\n", "\tat org.apache.X"])
def test_a_text_that_says_nothing_is_still_an_error(text):
    assert isinstance(failure_in(text), CkptError)


FULL_CHECKPOINT = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem.java:265)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)"""

FULL_IN_A_WORKER = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was thrown:
Traceback (most recent call last):
  File "/home/user/job.py", line 9, in spill
    out.write(rows)
OSError: [Errno 28] No space left on device: '/scratch/x'
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)"""


@pytest.mark.parametrize("text", [FULL_CHECKPOINT, FULL_IN_A_WORKER])
def test_a_full_disk_in_a_trace_of_java_or_python_is_reported_as_full(text):
    error = failure_in(text)
    assert (type(error), error.retriable) == (StoreFull, True)
    assert "No space left on device" in error.what
    assert "run_dir" in error.hint
    assert "\n" not in error.what


def test_a_disk_that_became_read_only_is_reported_as_read_only():
    assert type(failure_in("x: java.nio.file.FileSystemException: /s/offsets: Read-only file system")) is StoreReadOnly


@pytest.mark.parametrize(
    "text", ["PermissionError: [Errno 13] Permission denied: '/etc/shadow'", "ValueError: the text 'x' is none"]
)
def test_a_permission_error_of_a_users_function_is_not_a_disk_failure(text):
    assert type(failure_in(text)) is QueryFailed


def test_a_record_that_mentions_a_full_disk_is_not_a_full_disk():
    assert type(failure_in("[CAST_INVALID_INPUT] The value 'No space left on device' cannot be cast")) is QueryFailed


def test_every_failure_of_an_incarnation_becomes_one_of_our_errors():
    full = OSError(errno.ENOSPC, "No space left on device", "/cache/i3")
    assert type(typed(full)) is StoreFull
    assert typed(full).context["location"] == "/cache/i3"
    assert (
        type(
            typed(
                RuntimeError("An error occurred while calling o1.start. : java.io.IOException: No space left on device")
            )
        )
        is StoreFull
    )
    assert type(typed(RuntimeError(USER_FUNCTION))) is UserFunctionFailed
    assert (type(typed(KeyError("x"))), typed(KeyError("x")).what) == (RunFailed, "KeyError: 'x'")
    fenced = Fenced("newer")
    assert typed(fenced) is fenced


class Query:
    def __init__(self, error):
        self._error = error

    def exception(self):
        return self._error


@pytest.mark.parametrize("query", [None, Query(None)])
def test_a_query_stopped_from_outside_is_reported_as_stopped(query):
    error = failure_of(query)
    assert error.condition == "CKPT_QUERY_FAILED"
    assert "was not asked to stop" in error.what
    assert "StreamingQuery.stop" in error.hint


def test_the_error_of_a_dead_query_names_the_cause():
    assert type(failure_of(Query(StreamingQueryException(USER_FUNCTION)))) is UserFunctionFailed


def refused_by_java() -> OSError:
    """Return the socket's error that py4j raises when no Java process listens any more."""
    connection = ClientServerConnection(JavaParameters(port=1), PythonParameters(), GatewayProperty(None, None), None)
    with pytest.raises(ConnectionRefusedError) as refused:
        connection.connect_to_java_server()
    return refused.value


class Dead:
    """A query whose Java process ended after the check that it runs."""

    def __init__(self, raised):
        self._raised = raised

    def exception(self):
        raise self._raised


@pytest.mark.parametrize(
    "raised", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused")]
)
def test_a_java_process_that_ends_before_the_query_is_read_is_reported_as_gone(raised):
    assert type(failure_of(Dead(raised))) is JvmGone


def no_answer_of_java() -> Exception:
    return Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize("raised", [no_answer_of_java, refused_by_java])
def test_a_java_process_that_does_not_answer_is_not_an_unreachable_store(raised):
    error = typed(raised())
    assert type(error) is JvmGone
    assert not error.retriable


def test_a_store_that_refuses_connections_is_not_java():
    assert type(typed(ConnectionRefusedError(111, "Connection refused"))) is StoreUnreachable


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkException: Job 85 cancelled because SparkContext was shut down",
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was created",
        "An error occurred while calling z:org.apache.spark.api.python.PythonUtils.getBroadcastThreshold.\n: "
        'java.lang.NullPointerException: Cannot invoke "org.apache.spark.api.java.JavaSparkContext.sc()" because "jsc" is null',
    ],
)
def test_a_session_that_was_stopped_is_named_and_not_retried(text) -> None:
    for error in (failure_in(text), failure_by(RuntimeError(text)), typed(RuntimeError(text))):
        assert (type(error), error.retriable) == (SessionStopped, False)
        assert "run.stop() before spark.stop()" in error.hint


def test_a_record_that_mentions_a_stopped_session_is_no_stopped_session() -> None:
    error = failure_in("java.lang.NumberFormatException: 'Cannot call methods on a stopped SparkContext'")
    assert type(error) is QueryFailed


def test_a_text_in_the_query_plan_is_not_an_error() -> None:
    """A job that may fail on bad records must recover from every other failure."""
    error = failure_in(WITH_PLAN)

    assert isinstance(error, QueryFailed)
    assert error.retriable
    assert "does not exist" in error.what


def test_several_operators_of_spark_in_one_task_are_named_and_not_retried() -> None:
    message = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: \
Task 0 in stage 4.0 failed 1 times, most recent failure: Lost task 0.0 in stage 4.0 (TID 5) (host executor driver): \
java.lang.AssertionError: assertion failed: Can only upgrade readStore to writeStore with the same stateStoreId
\tat scala.Predef$.assert(Predef.scala:279)"""
    for error in (failure_in(message), failure_by(StreamingQueryException(message))):
        assert isinstance(error, GraphInvalid)
        assert not error.retriable
        assert "coalesce" in error.hint
