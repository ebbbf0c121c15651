"""Events of a run, or of an outbox, for programs. Override the methods that you need.

Calls come from the coordinator's thread; those of an outbox come from the threads of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_ckpt.connector import Json

if TYPE_CHECKING:
    from spark_ckpt.epochs.records import Manifest


@dataclass(frozen=True, slots=True)
class EpochEvent:
    """An event of one epoch.

    `detail`: rows, bytes, durations in ms, or the reason of an abort. `manifest`: the epoch's whole content, once it
    is committed.
    """

    job: str
    epoch: int
    incarnation: int
    detail: Mapping[str, Json]
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A micro-batch is over. `epoch`: the newest committed one. `progress`: its record in `run.lastProgress`."""

    job: str
    incarnation: int
    epoch: int
    progress: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class LagEvent:
    """Rows that wait, by source; sources that cannot count them are absent."""

    job: str
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LineEvent:
    """Newest lines of the programs that this job waits for or reads, itself included, in a protocol with lines.

    `served`: by program the number of the newest line that it serves, in seconds since 1970; 0 for none. The programs
    are the stages of the program, or this job and the senders of its edges.
    `released`: the newest epoch that the sinks of this job may publish; None if they publish each committed epoch.
    """

    job: str
    served: Mapping[str, int]
    released: int | None = None

    @property
    def common(self) -> int:
        """Number of the newest line that all of them serve; 0 for none."""
        return min(self.served.values(), default=0)


@dataclass(frozen=True, slots=True)
class IncarnationEvent:
    """Start or end of one incarnation. `reason`: the epoch that it was restored from, or why it ended.

    `unpublished`: at a start, the committed epochs that each sink lacks.
    """

    job: str
    incarnation: int
    base: int
    reason: str
    unpublished: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetryEvent:
    """An outbox tries a step again. `sink`: its publish; empty for the commit or for acknowledgements in the log.

    `epoch`: of the publish, 0 for the log. `condition` and `what`: of the error, for example CKPT_PUBLISH_FAILED.
    Attempt number `attempt` follows after `pause_ms`.
    """

    job: str
    incarnation: int
    epoch: int
    sink: str
    condition: str
    what: str
    attempt: int
    pause_ms: int


@dataclass(frozen=True, slots=True)
class OutageEvent:
    """The job waits: the store or a disk is unavailable, or the host is too busy to start Python workers.

    `condition` and `what`: of the error, for example CKPT_STORE_FULL. `waited_ms`: duration of the outage so far, of
    at most `patience_ms`. Attempt number `attempt` follows after `pause_ms`.
    """

    job: str
    incarnation: int
    condition: str
    what: str
    waited_ms: int
    patience_ms: int
    pause_ms: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StandbyEvent:
    """State of a standby: "waits", "follows" an epoch, "is warm" (it has run the job's plan once), "takes over".

    `lease_of`: the incarnation that it would replace, 0 for none. `holder`: the driver of that incarnation. `epoch`:
    the newest one that it has followed. `why`: evidence of the other driver's end.
    """

    job: str
    what: str
    lease_of: int
    epoch: int
    holder: str
    why: str


@dataclass(frozen=True, slots=True)
class MaintenanceEvent:
    """State of a job's maintenance under checkpoint lease `token` of standby `standby`.

    From the driver: "leased" to a standby; "revoked", if there is no standby, with token 0. From the standby:
    "done" up to `epoch`, "failed". From both: "found damage" in the epoch's files; `why` describes it.
    """

    job: str
    what: str
    token: int
    standby: str
    epoch: int = 0
    why: str = ""


class RunListener:
    """Listens to a run. An exception in a listener is logged and does not affect the run."""

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Called when a new incarnation continues from epoch `base`."""

    def onProgress(self, event: ProgressEvent) -> None:
        """Called after a micro-batch, like Spark's `StreamingQueryListener.onQueryProgress`."""

    def onPhases(self, event: ProgressEvent) -> None:
        """Called when Spark has finished a micro-batch, shortly after its `onProgress`.

        `progress`: that record, with Spark's phases in `durationMs` and Spark's `eventTime` and `stateOperators`. Called
        once per batch, except for batches at the end of an incarnation.
        """

    def onLag(self, event: LagEvent) -> None:
        """Called every `lag_interval` with the rows that wait at the sources, if metrics or the page are on. On
        another thread.
        """

    def onLines(self, event: LineEvent) -> None:
        """Called when a program serves a newer line (`protocol="index"`, `"unaligned"`, `"aligned"`)."""

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Called when the epoch's manifest is in the log: the epoch can be restored."""

    def onEpochAborted(self, event: EpochEvent) -> None:
        """Called when the epoch will not be committed; its rows belong to the next one."""

    def onEpochPublished(self, event: EpochEvent) -> None:
        """Called when a sink has published the epoch; `detail["sink"]` names it."""

    def onRetry(self, event: RetryEvent) -> None:
        """Called before an outbox tries a commit or a publish again. Called from the thread of that step."""

    def onOutage(self, event: OutageEvent) -> None:
        """Called once per attempt while the job waits for a disk, a store or Python workers.

        `onOutageOver` follows, also if the run ends.
        """

    def onOutageOver(self, event: OutageEvent) -> None:
        """Called when the job waits no longer: it works again, or the run has ended. `event`: the outage's last one."""

    def onStandby(self, event: StandbyEvent) -> None:
        """Called when the state of this standby changes. Called from threads of the standby."""

    def onMaintenance(self, event: MaintenanceEvent) -> None:
        """Called when the job's maintenance changes hands or ends. Called from threads of the driver and of the
        standby.
        """

    def onHandover(self, event: IncarnationEvent) -> None:
        """Called after a request to hand over: this driver takes a final epoch and ends, then a standby continues."""

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """Called when the incarnation stopped or failed."""
