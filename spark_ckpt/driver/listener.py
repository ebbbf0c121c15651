"""What a program may hear of a run while it runs. Override what you need; calls come from the coordinator's thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ckpt.connector import Json

if TYPE_CHECKING:
    from spark_ckpt.store.records import Manifest


@dataclass(frozen=True, slots=True)
class EpochEvent:
    """One epoch of one job. `detail`: rows, bytes, durations in ms, or the reason of an abort. `manifest`: everything the
    epoch consists of, when it is committed."""

    job: str
    epoch: int
    incarnation: int
    detail: Mapping[str, Json]
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A micro-batch is over. `epoch`: the newest committed one. `progress`: the record that `run.lastProgress` has of it."""

    job: str
    incarnation: int
    epoch: int
    progress: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class LagEvent:
    """How many rows wait, by source; those that cannot count are not there."""

    job: str
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IncarnationEvent:
    """The start or the end of one incarnation. `reason`: what it was restored from, or why it ended."""

    job: str
    incarnation: int
    base: int
    reason: str


@dataclass(frozen=True, slots=True)
class OutageEvent:
    """The store, or a disk the job needs, does not serve it, or the host is too busy to start Python workers; the job waits.
    `condition` and `what`: of the error, such as CKPT_STORE_FULL. The outage has lasted `waited_ms` of at most `patience_ms`;
    attempt number `attempt` follows after `pause_ms`.
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
    """What a standby does: "waits", "follows" an epoch, "is warm" (the job's own plan has run here once), "takes over".

    `lease_of`: the incarnation behind which it waits, 0 for none, of driver `holder`. `epoch`: the newest one it has followed.
    `why`: what it has seen of the other driver's end.
    """

    job: str
    what: str
    lease_of: int
    epoch: int
    holder: str
    why: str


@dataclass(frozen=True, slots=True)
class UpkeepEvent:
    """What becomes of a job's upkeep under checkpoint lease `token`, which standby `standby` has.

    Of the driver: "leased" to a standby; "taken back", for there is none, with token 0. Of the standby: "done" up to `epoch`,
    "given up". Of both: "found damage" in the epoch's files; `why` says what.
    """

    job: str
    what: str
    token: int
    standby: str
    epoch: int = 0
    why: str = ""


class RunListener:
    """Listens to a run. An exception in a listener is logged and does not touch the run."""

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """A new incarnation reads on from epoch `base`."""

    def onProgress(self, event: ProgressEvent) -> None:
        """A micro-batch is over; as Spark's `StreamingQueryListener.onQueryProgress`."""

    def onPhases(self, event: ProgressEvent) -> None:
        """Spark is through with a micro-batch, shortly after its `onProgress`: `progress` is that record with Spark's phases in
        `durationMs`. Once for a batch; not for those behind which the incarnation ended."""

    def onLag(self, event: LagEvent) -> None:
        """The sources were asked how many rows wait: every `lag_interval`, if metrics or the page are on. On another thread."""

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """The epoch's manifest is in the log: it can be restored."""

    def onEpochAborted(self, event: EpochEvent) -> None:
        """The epoch will not be decided; its rows belong to the next one."""

    def onEpochPublished(self, event: EpochEvent) -> None:
        """A sink has the epoch; `detail["sink"]` names it."""

    def onOutage(self, event: OutageEvent) -> None:
        """The job waits for a disk, a store or Python workers, once per attempt. When it is over, `onIncarnationStarted` follows,
        or the run ends."""

    def onStandby(self, event: StandbyEvent) -> None:
        """This driver waits behind another one. Called from threads of the standby."""

    def onUpkeep(self, event: UpkeepEvent) -> None:
        """Who does the job's upkeep, and what it came to. Called from threads of the driver and of the standby."""

    def onHandover(self, event: IncarnationEvent) -> None:
        """Somebody asked this driver to hand over: it takes a final epoch and ends, and a standby goes on."""

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """The incarnation stopped or failed."""
