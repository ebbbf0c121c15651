"""What each sink is and has, as far as this incarnation knows, and what it is to publish next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ckpt.connector import EpochOutput
from spark_ckpt.errors import CkptError
from spark_ckpt.protocol.ids import Epoch, Incarnation
from spark_ckpt.runtime.way_out import with_way_out
from spark_ckpt.store.identity import Parts, Standing
from spark_ckpt.store.records import Manifest

if TYPE_CHECKING:
    from spark_ckpt.runtime.job_plan import JobPlan
    from spark_ckpt.store.restore import RecoveryPoint


class SinkBooks:
    """Not thread-safe: the coordinator's thread owns it."""

    def __init__(
        self,
        plan: JobPlan,
        point: RecoveryPoint,
        standing: Standing | None = None,
        acked: Mapping[str, int] | None = None,
    ) -> None:
        self._plan = plan
        self._point = point
        self._acked = dict(acked or {})
        self.standing = standing or Standing()

    def published(self, sink: str, epoch: int, learned: Parts | None) -> None:
        """The sink has everything up to `epoch`; `learned`: its identity, if that was not known whole."""
        self._acked[sink] = epoch
        if learned is not None:
            self.standing = self.standing.learned(sink, learned)

    def told(self, error: CkptError, sink: str, manifest: Manifest) -> CkptError:
        """The error of a sink that could not publish the epoch, with the way out if its rows are damaged."""
        return with_way_out(error, sink, manifest, self._acked, self._plan.store.location.uri)

    def output(self, sink: str, manifest: Manifest, newest: int) -> EpochOutput:
        """What the sink has to publish for a decided epoch. `newest`: the highest epoch ever decided."""
        staged = manifest.outputs.get(sink)
        outbox = self._plan.store.outbox(sink).location
        plan = self._plan.stage_plan(sink)
        root, options = (outbox.uri, outbox.storage_options) if plan.root is None else (plan.root, plan.storage_options)
        acked, begun_after = self.standing.published(sink, self._acked.get(sink, 0))
        return EpochOutput(
            epoch=Epoch(manifest.epoch),
            incarnation=Incarnation(self._point.incarnation),
            previous=Epoch(acked),
            root=root,
            storage_options=options,
            files=[file.staged_file() for file in staged.files] if staged else [],
            acked=Epoch(acked),
            dropped=tuple(Epoch(each) for each in self._point.dropped.get(sink, ())),
            newest=Epoch(newest),
            decision=manifest.attempt,
            begun_after=None if begun_after is None else Epoch(begun_after),
        )
