"""Commits of one driver on their way to the log, which may answer late or after the driver's end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkpoint_lab.spark_store import Shared
from checkpoint_protocols.barrier import Outcome
from checkpoint_protocols.machine import Event
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import End, ManifestFenced, ManifestOverdue, ManifestStored, StoreManifest
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.store.epoch_log import EpochLog


@dataclass(frozen=True, eq=False)
class Decision:
    """A manifest on its way to the log; it outlives the driver that sent it."""

    log: EpochLog
    manifest: Manifest
    names: tuple[str, ...]

    def land(self) -> CkptError | None:
        """Commit the manifest. Return the log's error, if any."""
        try:
            self.log.commit_epoch(self.manifest)
        except CkptError as error:
            return error
        return None


class Deciding:
    """Commits of one driver. `asking`: the commit whose answer its coordinator waits for."""

    def __init__(self, shared: Shared, log: EpochLog, answers: deque[Event], end: Callable[[End], None]) -> None:
        self._shared = shared
        self._log = log
        self._answers = answers
        self._end = end
        self.asking: Decision | None = None
        self.unrecorded = False
        """True if the log did not take the latest acknowledgements."""

    def store(self, effect: StoreManifest) -> None:
        """Commit at once and take the answer."""
        decision = self._decision(effect)
        self._take(decision, decision.land())

    def ask(self, effect: StoreManifest) -> Decision:
        """Send a commit that reaches the log at a later step."""
        self.asking = self._decision(effect)
        return self.asking

    def answered(self, decision: Decision, error: CkptError | None) -> None:
        """Take the log's answer, if the coordinator still waits for it."""
        # an answer after the timeout changes nothing: the rules have moved on
        if self.asking is decision:
            self.asking = None
            self._take(decision, error)

    def record(self, incarnation: int, acks: Sequence[SinkAck]) -> CkptError | None:
        """Record acknowledgements without an epoch. Return the error if the log did not take them."""
        try:
            self._log.record_acks(incarnation, acks)
        except CkptError as error:
            self.unrecorded = True
            return error
        self.unrecorded = False
        return None

    def wait_no_longer(self) -> None:
        """Stop waiting: the log has not answered in time."""
        assert self.asking is not None  # noqa: S101 - else the choice does not exist
        self._answers.append(ManifestOverdue(self.asking.manifest.epoch))
        self.asking = None

    def _decision(self, effect: StoreManifest) -> Decision:
        self._shared.attempts += 1
        return Decision(self._log, stamped(effect.manifest, f"attempt {self._shared.attempts}", 1), effect.names)

    def _take(self, decision: Decision, error: CkptError | None) -> None:
        if isinstance(error, Fenced):
            self._answers.append(ManifestFenced(decision.manifest.epoch, str(error)))
        elif error is not None:
            self._end(End(Outcome.FAILED, error))
        else:
            self._answers.append(ManifestStored(decision.manifest, decision.names))
