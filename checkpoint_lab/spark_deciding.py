"""A driver's decisions on their way to the log, which may answer late, or when nobody listens any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkpoint_lab.spark_store import Shared
from checkpoint_protocols.barrier import Outcome
from checkpoint_protocols.machine import Event
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import End, ManifestFenced, ManifestOverdue, ManifestStored, StoreManifest
from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.records import Manifest, SinkAck


@dataclass(frozen=True, eq=False)
class Decision:
    """A manifest on its way to the log, which outlives the driver that sent it."""

    log: EpochLog
    manifest: Manifest
    names: tuple[str, ...]

    def land(self) -> CkptError | None:
        """The log takes it, or says why not."""
        try:
            self.log.commit_epoch(self.manifest)
        except CkptError as error:
            return error
        return None


class Deciding:
    """One driver's. `asking`: what its coordinator waits for the log to answer."""

    def __init__(self, shared: Shared, log: EpochLog, answers: deque[Event], end: Callable[[End], None]) -> None:
        self._shared = shared
        self._log = log
        self._answers = answers
        self._end = end
        self.asking: Decision | None = None
        self.unrecorded = False
        """The log did not take the acknowledgements that it was told last."""

    def store(self, effect: StoreManifest) -> None:
        """The log answers at once."""
        decision = self._decision(effect)
        self._take(decision, decision.land())

    def ask(self, effect: StoreManifest) -> Decision:
        """When the decision gets to the log is not for the driver to say."""
        self.asking = self._decision(effect)
        return self.asking

    def answered(self, decision: Decision, error: CkptError | None) -> None:
        """The log's answer, if anybody waits for it."""
        if self.asking is decision:
            self.asking = None
            self._take(decision, error)

    def record(self, incarnation: int, acks: Sequence[SinkAck]) -> CkptError | None:
        """Acknowledgements without an epoch; the error if the log did not take them."""
        try:
            self._log.record_acks(incarnation, acks)
        except CkptError as error:
            self.unrecorded = True
            return error
        self.unrecorded = False
        return None

    def wait_no_longer(self) -> None:
        """The log has not answered in time."""
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
