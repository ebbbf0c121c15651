"""The error tree: what happened, to which epoch, operator and table, and what to run next.

Every error a user can meet is a `CkptError` with a condition in Spark's style (`CKPT_EPOCH_DAMAGED`).
Handlers ask the error, not a list: `retriable` says whether a new attempt can succeed, `passes` whether it is an outage that a
running job waits for, `exit_code` is what the command line returns.  Keyword arguments become fields of the message; never pass
a secret.
"""

from __future__ import annotations

from textwrap import indent
from typing import ClassVar


class CkptError(Exception):
    """Base of every error raised on purpose. `hint` is a sentence or command the operator can act on."""

    condition: ClassVar[str] = "CKPT_ERROR"
    retriable: ClassVar[bool] = False
    passes: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "", **context: object) -> None:
        self.what = what
        self.hint = hint
        self.context = {name: value for name, value in context.items() if value is not None}
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"[{self.condition}] {self.what}"]
        lines += [f"  {name}:{_beside_or_below(str(value))}" for name, value in self._told().items()]
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)

    def _told(self) -> dict[str, object]:
        """What stands below the first line."""
        return self.context

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.hint, self.context))


def _beside_or_below(value: str) -> str:
    """What is longer than a line (a traceback, say) stands below its name, indented."""
    return "\n" + indent(value, "    ") if "\n" in value else f" {value}"


def _rebuild(cls: type[CkptError], what: str, hint: str, context: dict[str, object]) -> CkptError:
    return cls(what, hint=hint, **context)


class ConfigInvalid(CkptError):
    """A setting is unknown, out of range or contradicts another one."""

    condition = "CKPT_CONFIG_INVALID"
    exit_code = 2


class GraphInvalid(CkptError):
    """The job's graph cannot run: no sink, a stream that is read twice, a schema that does not match."""

    condition = "CKPT_GRAPH_INVALID"
    exit_code = 2


class StoreOutage(CkptError):
    """A place that the job writes to does not serve it for now. A running job waits for it, see `store_patience`."""

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
    """The user that runs the job may not read or write there."""

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
    """The location holds something that is not a store of this job."""

    condition = "CKPT_STORE_FOREIGN"
    exit_code = 3


class FormatUnknown(CkptError):
    """The store was written in a format this version does not know."""

    condition = "CKPT_FORMAT_UNKNOWN"
    exit_code = 3


class StoreInUse(CkptError):
    """Another driver holds the store's lease."""

    condition = "CKPT_STORE_IN_USE"
    exit_code = 4


class Fenced(CkptError):
    """A newer incarnation took over; nothing of this one can be committed or published any more."""

    condition = "CKPT_FENCED"
    exit_code = 4


class HandoverFailed(CkptError):
    """A job could not be handed over to a standby: nobody runs it, nobody waits, or one of both did not do it in time."""

    condition = "CKPT_HANDOVER_FAILED"
    exit_code = 4


class EpochNotFound(CkptError):
    """The epoch or savepoint asked for is not in the log."""

    condition = "CKPT_EPOCH_NOT_FOUND"
    exit_code = 5


class EpochDamaged(CkptError):
    """A file that an epoch consists of is missing or does not match its manifest."""

    condition = "CKPT_EPOCH_DAMAGED"
    exit_code = 5

    @property
    def damaged_file(self) -> str:
        """The one file that it tells of, as its manifest names it; empty if it does not tell of one."""
        return str(self.context.get("file", ""))

    def _told(self) -> dict[str, object]:
        """The first line names the file."""
        said = self.damaged_file in self.what
        return {name: value for name, value in self.context.items() if not (said and name == "file")}


class LogDamaged(EpochDamaged):
    """A Delta table's own log cannot be understood."""

    condition = "CKPT_LOG_DAMAGED"


class StateSchemaChanged(CkptError):
    """The state written by earlier epochs does not fit the operator's declared key or state schema."""

    condition = "CKPT_STATE_SCHEMA_CHANGED"
    exit_code = 5


class CheckpointForeign(CkptError):
    """A folder is not the checkpoint of a plain Spark query, or not one that a rewind can be planned for."""

    condition = "CKPT_CHECKPOINT_FOREIGN"
    exit_code = 3


class CheckpointUnreadable(CkptError):
    """A checkpoint, or a table beside it, cannot be read: no rights, no such folder, a failing device."""

    condition = "CKPT_CHECKPOINT_UNREADABLE"
    exit_code = 3


class CheckpointDamaged(CkptError):
    """A file of a plain query's checkpoint is missing or holds something else than it should."""

    condition = "CKPT_CHECKPOINT_DAMAGED"
    exit_code = 5


class RewindOutOfReach(CkptError):
    """No consistent line at or before the target can be restored any more."""

    condition = "CKPT_REWIND_OUT_OF_REACH"
    exit_code = 5


class PinsForeign(CkptError):
    """A folder does not hold pinned points."""

    condition = "CKPT_PINS_FOREIGN"
    exit_code = 3


class PinsInUse(CkptError):
    """Somebody else is changing a folder of pinned points."""

    condition = "CKPT_PINS_IN_USE"
    exit_code = 4


class PinsOverBudget(CkptError):
    """A point does not fit beside the named ones into what they may hold together."""

    condition = "CKPT_PINS_OVER_BUDGET"
    exit_code = 3


class PinNotFound(CkptError):
    """There is no pinned point of this name."""

    condition = "CKPT_PIN_NOT_FOUND"
    exit_code = 5


class RewindStale(CkptError):
    """A query or table is not any more as it was when the plan was made, or when the rewind was carried out."""

    condition = "CKPT_REWIND_STALE"
    exit_code = 4


class RewindQueryRuns(CkptError):
    """A query that has to go back is running."""

    condition = "CKPT_REWIND_QUERY_RUNS"
    exit_code = 4


class RewindUnderWay(CkptError):
    """A rewind has begun and is not over: its fences keep queries from starting on a mix."""

    condition = "CKPT_REWIND_UNDER_WAY"
    exit_code = 4


class RewindUnsupported(CkptError):
    """A plan cannot be carried out: a feature of a table, a sink, or a kind of start that a rewind would not be right for."""

    condition = "CKPT_REWIND_UNSUPPORTED"
    exit_code = 5


class RewindNotPermitted(CkptError):
    """The file system refuses what a rewind has to write: no rights, no room, or it cannot do it."""

    condition = "CKPT_REWIND_NOT_PERMITTED"
    exit_code = 3


class AdoptionRefused(CkptError):
    """A plain query's checkpoint cannot become a job's first epoch, or not before something is said or done."""

    condition = "CKPT_ADOPTION_REFUSED"
    exit_code = 5


class EpochTimedOut(CkptError):
    """An epoch did not complete within its bound."""

    condition = "CKPT_EPOCH_TIMED_OUT"
    retriable = True
    exit_code = 6


class StopTimedOut(EpochTimedOut, SystemExit):
    """SIGTERM or SIGINT ended the run before its final epoch was taken. A program that does not catch it ends with this code."""

    condition = "CKPT_STOP_TIMED_OUT"
    retriable = False
    exit_code = 11

    def __init__(self, what: str, *, hint: str = "", **context: object) -> None:
        super().__init__(what, hint=hint, **context)
        self.code = self.exit_code


class RunFailed(CkptError):
    """The run gave up after its bounded number of recoveries; the reason is inside."""

    condition = "CKPT_RUN_FAILED"
    exit_code = 6


class BadRecord(CkptError):
    """A record could not be parsed and the job's policy is to fail."""

    condition = "CKPT_BAD_RECORD"
    exit_code = 7


class SourceInvalid(CkptError):
    """A source does not exist, cannot be reached, or lost data the job still needs."""

    condition = "CKPT_SOURCE_INVALID"
    exit_code = 8


class SourceSilent(SourceInvalid):
    """A source does not answer when the job asks if it is still the same one; the next incarnation asks again."""

    condition = "CKPT_SOURCE_SILENT"
    retriable = True


class StartOutOfRange(SourceInvalid):
    """The configured start of a source is not in the topic."""

    condition = "CKPT_START_OUT_OF_RANGE"


class SinkInvalid(CkptError):
    """A sink does not exist, cannot be reached, or cannot take the job's rows."""

    condition = "CKPT_SINK_INVALID"
    exit_code = 8


class RowsRefused(SinkInvalid):
    """A sink cannot take rows of a committed epoch: it was changed after they were staged, or they violate one of its rules."""

    condition = "CKPT_ROWS_REFUSED"


class IdentityChanged(CkptError):
    """A source or sink is not the table, topic or folder that the job's epochs say, and nobody has confirmed that."""

    condition = "CKPT_IDENTITY_CHANGED"
    exit_code = 8


class PublishFailed(CkptError):
    """A decided epoch could not be published yet; it stays staged and is tried again."""

    condition = "CKPT_PUBLISH_FAILED"
    retriable = True
    exit_code = 9


class PublishConflict(CkptError):
    """The sink's marker contradicts the log: somebody else wrote it, or it was lost. Publishing would be a guess."""

    condition = "CKPT_PUBLISH_CONFLICT"
    exit_code = 9

    @property
    def marker(self) -> int | None:
        """The epoch that the sink's marker names, None if the error does not tell."""
        marker = str(self.context.get("marker", ""))
        return int(marker) if marker.isdigit() else None


class ConnectorUnknown(CkptError):
    """No installed package declares a connector of this name."""

    condition = "CKPT_CONNECTOR_UNKNOWN"
    exit_code = 2


class ConnectorBroken(CkptError):
    """An installed package declares a connector that cannot be imported or is not one."""

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
    """A recorded trace cannot be read: it is none, is damaged, or is of a format that this version does not know."""

    condition = "CKPT_TRACE_INVALID"
    exit_code = 2


class ProtocolCondemned(CkptError):
    """The simulator has seen a protocol that promises exactly-once break it: a bug of spark_ckpt."""

    condition = "CKPT_PROTOCOL_CONDEMNED"
    exit_code = 1
