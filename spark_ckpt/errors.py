"""The error tree. An error names the event, its epoch, operator or table, and the next command.

Every error that a user can meet is a `CkptError` with a condition in Spark's style (`CKPT_EPOCH_DAMAGED`). Handlers
read attributes instead of matching classes:

- `retriable`: a new attempt can succeed.
- `passes`: an outage that a running job waits for.
- `exit_code`: the command line returns it.

Keyword arguments become fields of the message. Never pass a secret.
"""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING, ClassVar, Self

from spark_ckpt.wording import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable


_MOST_IN_SHORT = 500


class CkptError(Exception):
    """Base of every error that spark_ckpt raises on purpose.

    `hint`: a sentence or command that the operator can act on.
    """

    condition: ClassVar[str] = "CKPT_ERROR"
    retriable: ClassVar[bool] = False
    passes: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "", **context: object) -> None:
        self.what = what
        self.hint = hint
        # Callers pass facts that may be unknown; the message leaves these out.
        self.context = {name: value for name, value in context.items() if value is not None}
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"[{self.condition}] {self.what}"]
        lines += [f"  {name}:{_inline_or_below(str(value))}" for name, value in self._fields().items()]
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)

    def _fields(self) -> dict[str, object]:
        return self.context


def in_short(error: BaseException) -> str:
    """Return an error as the epoch log records it: its condition and first line, or its type."""
    told = f"[{error.condition}] {error.what}" if isinstance(error, CkptError) else type(error).__name__
    # The rest of an error may contain data of rows, so it stays in the driver's log.
    return told.partition("\n")[0][:_MOST_IN_SHORT]


def _inline_or_below(value: str) -> str:
    """Format a value that is longer than a line (a traceback, say) below its name, indented."""
    return "\n" + indent(value, "    ") if "\n" in value else f" {value}"


class NameUnknown(CkptError, AttributeError):
    """The program uses a name that a module does not have. It is also an `AttributeError`, so `hasattr` returns False."""

    condition = "CKPT_NAME_UNKNOWN"
    exit_code = 2

    @classmethod
    def of(cls, module: str, name: str, known: Iterable[str], hint: str = "") -> AttributeError:
        """Return the error of `module.name` with `hint`, or the nearest known name; a plain error without both."""
        what = f"module {module!r} has no attribute {name!r}"
        # Python itself asks modules for such names
        hint = "" if name.startswith("__") else hint or did_you_mean(name, known)
        return cls(what, hint=hint) if hint else AttributeError(what)


class ConfigInvalid(CkptError):
    """A setting is unknown, out of range or contradicts another one."""

    condition = "CKPT_CONFIG_INVALID"
    exit_code = 2


class GraphInvalid(CkptError):
    """The job's graph cannot run: no sink, a stream that is read twice, a schema that does not match."""

    condition = "CKPT_GRAPH_INVALID"
    exit_code = 2


class StoreOutage(CkptError):
    """The job cannot write to its store or a disk at present. A running job retries for `store_patience`."""

    condition = "CKPT_STORE_OUTAGE"
    retriable = True
    passes = True
    exit_code = 3


class StoreUnreachable(StoreOutage):
    """The store's location cannot be read or written."""

    condition = "CKPT_STORE_UNREACHABLE"


class StoreFull(StoreOutage):
    """The file system has no space left, or the user's quota is used up."""

    condition = "CKPT_STORE_FULL"


class StoreReadOnly(StoreOutage):
    """The file system is mounted read-only, or became so after an error of its device."""

    condition = "CKPT_STORE_READ_ONLY"


class StoreDenied(StoreOutage):
    """The user or the credentials of the job lack the permission to read or write the location that the message names."""

    condition = "CKPT_STORE_DENIED"


class StoreIoFailed(StoreOutage):
    """The device below the file system failed to read or write."""

    condition = "CKPT_STORE_IO_FAILED"


class WorkersNotStarted(CkptError):
    """Spark could not start its Python processes in time. A running job waits and tries again, see `store_patience`."""

    condition = "CKPT_WORKERS_NOT_STARTED"
    retriable = True
    passes = True
    exit_code = 10


class StoreForeign(CkptError):
    """The location holds data that is not a store of this job."""

    condition = "CKPT_STORE_FOREIGN"
    exit_code = 3


class FormatUnknown(CkptError):
    """The format of the data is newer or older than the formats that this version reads."""

    condition = "CKPT_FORMAT_UNKNOWN"
    exit_code = 3

    @classmethod
    def of(cls, what: str, found: object, read: int) -> Self:
        """Return the error for `what` in the format `found`, where this version reads the format `read`."""
        newer = isinstance(found, int) and found > read
        return cls(
            f"{what} is in format {found}, this version of spark_ckpt reads format {read}",
            hint="upgrade spark_ckpt to the version that wrote it"
            if newer
            else "a version before 0.1.0 wrote it, and none reads it now: start the job on a new store",
            found=found,
            reads=read,
        )


class StoreInUse(CkptError):
    """Another driver holds the store's lease."""

    condition = "CKPT_STORE_IN_USE"
    exit_code = 4


class Fenced(CkptError):
    """A newer incarnation took over. This one can no longer commit or publish."""

    condition = "CKPT_FENCED"
    exit_code = 4


class HandoverFailed(CkptError):
    """A job could not be handed over: no driver runs it, no standby waits, or one of them failed or did not act in time."""

    condition = "CKPT_HANDOVER_FAILED"
    exit_code = 4


class EpochNotFound(CkptError):
    """The requested epoch or savepoint is not in the log."""

    condition = "CKPT_EPOCH_NOT_FOUND"
    exit_code = 5


class EpochDamaged(CkptError):
    """A file of an epoch is missing or does not match its manifest."""

    condition = "CKPT_EPOCH_DAMAGED"
    exit_code = 5

    @property
    def damaged_file(self) -> str:
        """The one damaged file, as its manifest names it; empty if the error names none."""
        return str(self.context.get("file", ""))

    def _fields(self) -> dict[str, object]:
        # The first line names the file already.
        said = self.damaged_file in self.what
        return {name: value for name, value in self.context.items() if not (said and name == "file")}


UNREADABLE = (EpochDamaged, EpochNotFound)
"""Errors of reading an epoch that a search skips: the second if retention dropped it after the search read the log."""


class LogDamaged(EpochDamaged):
    """The log of a Delta table cannot be read."""

    condition = "CKPT_LOG_DAMAGED"


class StateSchemaChanged(CkptError):
    """The state of earlier epochs does not fit the operator's declared key or state schema."""

    condition = "CKPT_STATE_SCHEMA_CHANGED"
    exit_code = 5


class SparkStateUncaptured(CkptError):
    """Files of the state of Spark's own operators were gone, or not committed by Spark, when an epoch needed them."""

    condition = "CKPT_SPARK_STATE_UNCAPTURED"
    retriable = True


class SparkStateChanged(CkptError):
    """The program's Spark operators, or their schemas, changed, so Spark cannot load their state of the epoch."""

    condition = "CKPT_SPARK_STATE_CHANGED"
    exit_code = 5


class CheckpointForeign(CkptError):
    """A folder is not the checkpoint of a plain Spark query, or rewind does not support this checkpoint."""

    condition = "CKPT_CHECKPOINT_FOREIGN"
    exit_code = 3


class CheckpointUnreadable(CkptError):
    """A checkpoint, or a table next to it, cannot be read: no rights, no such folder, a failing device."""

    condition = "CKPT_CHECKPOINT_UNREADABLE"
    exit_code = 3


class CheckpointDamaged(CkptError):
    """A file of a plain query's checkpoint is missing or has unexpected content."""

    condition = "CKPT_CHECKPOINT_DAMAGED"
    exit_code = 5


class RewindOutOfReach(CkptError):
    """No consistent point at or before the target can be restored any more."""

    condition = "CKPT_REWIND_OUT_OF_REACH"
    exit_code = 5


class PinsForeign(CkptError):
    """A folder does not hold pinned points."""

    condition = "CKPT_PINS_FOREIGN"
    exit_code = 3


class PinsInUse(CkptError):
    """Another process is changing a folder of pinned points."""

    condition = "CKPT_PINS_IN_USE"
    exit_code = 4


class PinsOverBudget(CkptError):
    """A point does not fit into the space budget together with the named points."""

    condition = "CKPT_PINS_OVER_BUDGET"
    exit_code = 3


class PinNotFound(CkptError):
    """There is no pinned point of this name."""

    condition = "CKPT_PIN_NOT_FOUND"
    exit_code = 5


class RewindStale(CkptError):
    """A query or table has changed since the plan was made, or since the rewind was carried out."""

    condition = "CKPT_REWIND_STALE"
    exit_code = 4


class RewindQueryRuns(CkptError):
    """A query that the rewind rolls back is running."""

    condition = "CKPT_REWIND_QUERY_RUNS"
    exit_code = 4


class RewindUnderWay(CkptError):
    """A rewind has begun and has not ended. Its fences keep queries from starting on mixed content."""

    condition = "CKPT_REWIND_UNDER_WAY"
    exit_code = 4


class RestoreUnderWay(CkptError):
    """A restore of several stores to one line has begun and has not reached all of them."""

    condition = "CKPT_RESTORE_UNDER_WAY"
    exit_code = 4


class RewindUnsupported(CkptError):
    """A plan cannot be carried out: a rewind is not correct for a feature of a table, a sink, or a kind of start."""

    condition = "CKPT_REWIND_UNSUPPORTED"
    exit_code = 5


class RewindNotPermitted(CkptError):
    """The file system refuses a write of the rewind: no rights, no space, or an unsupported operation."""

    condition = "CKPT_REWIND_NOT_PERMITTED"
    exit_code = 3


class AdoptionRefused(CkptError):
    """`spark-ckpt adopt` cannot turn the checkpoint of a plain query into a job, or it needs another step first."""

    condition = "CKPT_ADOPTION_REFUSED"
    exit_code = 5


class QueryForeign(CkptError):
    """The outbox belongs to another query: the checkpoint was deleted, or two queries share the outbox."""

    condition = "CKPT_QUERY_FOREIGN"
    exit_code = 3


class BatchUnexpected(CkptError):
    """A batch does not follow the epochs of its outbox, so checkpoint and outbox do not belong together any more."""

    condition = "CKPT_BATCH_UNEXPECTED"
    exit_code = 5


class EpochTimedOut(CkptError):
    """An epoch did not complete within its time limit."""

    condition = "CKPT_EPOCH_TIMED_OUT"
    retriable = True
    exit_code = 6


class StopTimedOut(EpochTimedOut, SystemExit):
    """SIGTERM or SIGINT ended the run before its final epoch was committed.

    A program that does not catch it ends with this code.
    """

    condition = "CKPT_STOP_TIMED_OUT"
    retriable = False
    code = exit_code = 11  # `code`: SystemExit's, with which the interpreter ends


class DrainStopped(CkptError, SystemExit):
    """SIGTERM, SIGINT or a handover ended a run with `availableNow=True` before it had read the available input.

    A program that does not catch it ends with this code.
    """

    condition = "CKPT_DRAIN_STOPPED"
    code = exit_code = 12


class RunFailed(CkptError):
    """The run stopped after its maximum number of recoveries. The message contains the reason."""

    condition = "CKPT_RUN_FAILED"
    exit_code = 6


class BadRecord(CkptError):
    """A record could not be parsed and the job's policy is to fail."""

    condition = "CKPT_BAD_RECORD"
    exit_code = 7


class SourceInvalid(CkptError):
    """A source does not exist, refuses the job, or lost data that the job still needs."""

    condition = "CKPT_SOURCE_INVALID"
    exit_code = 8


class SourceSilent(SourceInvalid):
    """A source does not answer, when the job starts or queries its identity. The next incarnation queries again."""

    condition = "CKPT_SOURCE_SILENT"
    retriable = True


class RowsLost(SourceInvalid):
    """A source no longer has rows that the job has not read: retention, VACUUM or a broker deleted them."""

    condition = "CKPT_ROWS_LOST"


class SourceUndone(SourceInvalid):
    """The job that sends over an edge restored an older epoch. This job has rows that the sender has undone."""

    condition = "CKPT_SOURCE_UNDONE"


class StartOutOfRange(SourceInvalid):
    """The topic does not have the offset at which the source is configured to start."""

    condition = "CKPT_START_OUT_OF_RANGE"


class SinkInvalid(CkptError):
    """A sink does not exist, cannot be reached, or cannot take the job's rows."""

    condition = "CKPT_SINK_INVALID"
    exit_code = 8


class RowsRefused(SinkInvalid):
    """A sink cannot take rows of a committed epoch: it was changed after they were staged, or they violate one of its rules."""

    condition = "CKPT_ROWS_REFUSED"


class IdentityChanged(CkptError):
    """A source or sink is another table, topic or folder than in the job's epochs, and the change is not confirmed."""

    condition = "CKPT_IDENTITY_CHANGED"
    exit_code = 8


class PublishFailed(CkptError):
    """A committed epoch could not be published yet. It stays staged, and the job tries again."""

    condition = "CKPT_PUBLISH_FAILED"
    retriable = True
    exit_code = 9


class PublishConflict(CkptError):
    """The sink's marker contradicts the epoch log. The job stops, because it could lose rows or publish them twice."""

    condition = "CKPT_PUBLISH_CONFLICT"
    exit_code = 9

    @property
    def marker(self) -> int | None:
        """Epoch that the sink's marker names; None if the error does not contain it."""
        marker = str(self.context.get("marker", ""))
        return int(marker) if marker.isdigit() else None


class ConnectorUnknown(CkptError):
    """No installed package declares a connector of this name."""

    condition = "CKPT_CONNECTOR_UNKNOWN"
    exit_code = 2


class ConnectorBroken(CkptError):
    """An installed package declares a connector that cannot be imported or is invalid."""

    condition = "CKPT_CONNECTOR_BROKEN"
    exit_code = 10


class ConnectorTooNew(CkptError):
    """A connector was written for a newer contract than this version of spark_ckpt has."""

    condition = "CKPT_CONNECTOR_TOO_NEW"
    exit_code = 10


class EnvironmentUnfit(CkptError):
    """Java, PySpark, a jar or another part of the environment is missing or has the wrong version."""

    condition = "CKPT_ENVIRONMENT_UNFIT"
    exit_code = 10


class TraceInvalid(CkptError):
    """A recorded trace cannot be read: it is no trace, is damaged, or has a format that this version does not know."""

    condition = "CKPT_TRACE_INVALID"
    exit_code = 2


class ProtocolCondemned(CkptError):
    """The simulator saw a violation of exactly-once by a protocol that promises it: a bug of spark_ckpt."""

    condition = "CKPT_PROTOCOL_CONDEMNED"
    exit_code = 1
