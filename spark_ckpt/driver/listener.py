"""What a program may hear of a run while it runs. Override what you need; calls come from the coordinator's thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ckpt.connector import Json


@dataclass(frozen=True, slots=True)
class EpochEvent:
    """One epoch of one job. `detail`: rows, bytes, durations in ms, or the reason of an abort."""

    job: str
    epoch: int
    incarnation: int
    detail: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class IncarnationEvent:
    """The start or the end of one incarnation. `reason`: what it was restored from, or why it ended."""

    job: str
    incarnation: int
    base: int
    reason: str


@dataclass(frozen=True, slots=True)
class OutageEvent:
    """The store, or a disk the job needs, does not serve it; the job waits. `condition` and `what`: of the error, such as
    CKPT_STORE_FULL. The outage has lasted `waited_ms` of at most `patience_ms`; attempt number `attempt` follows after `pause_ms`.
    """

    job: str
    incarnation: int
    condition: str
    what: str
    waited_ms: int
    patience_ms: int
    pause_ms: int
    attempt: int


class RunListener:
    """Listens to a run. An exception in a listener is logged and does not touch the run."""

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """A new incarnation reads on from epoch `base`."""

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """The epoch's manifest is in the log: it can be restored."""

    def onEpochAborted(self, event: EpochEvent) -> None:
        """The epoch will not be decided; its rows belong to the next one."""

    def onEpochPublished(self, event: EpochEvent) -> None:
        """A sink has the epoch; `detail["sink"]` names it."""

    def onOutage(self, event: OutageEvent) -> None:
        """The job waits for a disk or store, once per attempt. When it is over, `onIncarnationStarted` follows, or the run ends."""

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """The incarnation stopped or failed."""
