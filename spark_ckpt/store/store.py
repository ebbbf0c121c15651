"""A job's store as a whole: its control log, its tables, and what is done after a decision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import MappingProxyType
from typing import Self

from spark_ckpt.content import check_size
from spark_ckpt.errors import EpochDamaged, StoreForeign
from spark_ckpt.store.delta_log import LOG
from spark_ckpt.store.epoch_log import EpochLog, Fence, wall_ms
from spark_ckpt.store.folders import bucket_of, delete_folder, folders
from spark_ckpt.store.inflight import InFlight
from spark_ckpt.store.location import FileInfo, Location, total_size
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.names import valid_name
from spark_ckpt.store.outbox import Outbox
from spark_ckpt.store.records import Manifest, StagedFileRecord, StateFile
from spark_ckpt.store.retention import (
    Retention,
    RetentionReport,
    garbage,
    kept_epochs,
    segments,
    staged_files,
    state_files,
)
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.state_table import StateTable
from spark_ckpt.store.trim import TRIM_EVERY_MS, trim

HINT_NO_STORE = "check the path; a job creates its store when it starts"
_STATE, _EDGES, _INFLIGHT, _RUNS, _EPOCHS = "state", "edges", "inflight", "runs", "epochs"


def _go_on() -> None:
    """Nothing stands in the way."""


class Store:
    """Opened by `Store.open`. Calls from several threads are serialised."""

    def __init__(self, location: Location, job: str | None, now_ms: Callable[[], int] = wall_ms) -> None:
        self.location = location
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._states: dict[str, StateTable] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._inflight: dict[str, InFlight] = {}
        self._swept_for = -1
        self._trimmed_ms: int | None = None
        self._moved: dict[str, str] = {}
        self.log = self._opened_log(job)
        log_state = self.log.state()
        if not log_state.store_id:
            raise EpochDamaged(
                "the store's log does not say whose it is",
                store=location.uri,
                hint="its creation was cut short: start the job, it completes it",
            )
        self.job, self.id = valid_name("job", log_state.job), log_state.store_id

    @classmethod
    def open(
        cls, uri: str, job: str, storage_options: Mapping[str, str] | None = None, now_ms: Callable[[], int] = wall_ms
    ) -> Self:
        """The store at `uri`; created if the location is empty.

        Raises `ConfigInvalid` (no store can be kept there), `StoreForeign` (another job's, or something else is there),
        `FormatUnknown`, a `StoreOutage`.
        """
        return cls(store_location(uri, storage_options), valid_name("job", job), now_ms)

    def reopened(self) -> Self:
        """Another view of the same store, for another thread or a command."""
        return type(self)(self.location, self.job, self._now_ms)

    def state(self, operator: str) -> StateTable:
        """The state table of an operator."""
        with self._lock:
            if operator not in self._states:
                location = self.location.child(_STATE, valid_name("operator", operator))
                self._states[operator] = StateTable(location, operator, self.log)
            return self._states[operator]

    def outbox(self, sink: str) -> Outbox:
        """The outbox of a sink."""
        with self._lock:
            if sink not in self._outboxes:
                location = self.location.child(_EDGES, valid_name("sink", sink))
                self._outboxes[sink] = Outbox(location, sink, self.log)
            return self._outboxes[sink]

    def edge(self, name: str) -> InFlight:
        """What is in flight on an edge of the job's graph."""
        with self._lock:
            if name not in self._inflight:
                location = self.location.child(_INFLIGHT, valid_name("edge", name))
                self._inflight[name] = InFlight(location, name, self.log)
            return self._inflight[name]

    def run_folder(self, incarnation: int) -> Location:
        """Spark's own checkpoints of one incarnation: disposable."""
        return self.location.child(_RUNS, str(incarnation))

    def moved(self, sink: str, root: str) -> None:
        """What the sink is owed lies below `root` now: its table was moved, and the staged files with it."""
        self._moved[sink] = root

    def verify_for(self, taken_back: Mapping[str, int]) -> Callable[[Manifest], None]:
        """`verify`, if each of these sinks has nothing after the epoch that stands with it."""
        return partial(self.verify, taken_back=taken_back)

    def verify(
        self, manifest: Manifest, deep: bool = False, taken_back: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Every file of the epoch is there with its size; `deep`: and its bytes. Raises `EpochDamaged`.

        Rows staged outside of the store are looked at only while the sink is owed them: later they are the sink's own.
        """
        for operator, snapshot in manifest.operators.items():
            place = self.state(operator).location
            _verify(place, snapshot.files, deep, epoch=manifest.epoch, operator=operator)
        for edge, cut in manifest.edges.items():
            _verify(self.edge(edge).location, cut.files, deep, epoch=manifest.epoch, edge=edge)
        for sink, output in (*manifest.outputs.items(), *manifest.held.items()):
            lacks = manifest.epoch > taken_back.get(sink, manifest.epoch)
            staged_at = self._staged_at(sink, output.root, manifest.epoch, lacks)
            if staged_at is not None:
                _verify(staged_at, output.files, deep, epoch=manifest.epoch, sink=sink)

    def materialize(
        self, manifest: Manifest, incarnation: int | None = None, guard: Callable[[], None] = _go_on
    ) -> None:
        """Idempotent redo after the decision: the store's tables show what the manifest says.

        After a restore, call it once with `RecoveryPoint.manifest`: tables go back to the restored epoch. `incarnation`: the one
        that stands on the epoch, by default this object's own. `guard` is called before each table, and may raise.
        """
        ours = incarnation or self.log.own_incarnation or manifest.incarnation
        with self._lock:
            tables: list[StateTable | Outbox | InFlight] = []
            tables += map(self.state, sorted({*manifest.operators, *self._tables(_STATE)}))
            tables += map(self.outbox, sorted({*manifest.outputs, *self._tables(_EDGES)}))
            tables += map(self.edge, sorted({*manifest.edges, *self._tables(_INFLIGHT)}))
            for table in tables:
                guard()
                table.materialize(manifest, ours)

    def retain(
        self, policy: Retention, guard: Callable[[], None] = _go_on, fence: Fence = lambda log_state: None
    ) -> RetentionReport:
        """Forget old epochs and delete what no kept epoch needs. Safe to stop at any point and to repeat.

        Raises `Fenced` if this object's own incarnation was replaced, and what `fence` raises of the log that epochs are dropped
        from. `guard` is called before each table's files go, and may raise.
        """

        def kept(log_state: LogState) -> set[int]:
            keep = kept_epochs(log_state, policy, self._now_ms())
            return keep if len(log_state.by_id) - len(keep) > policy.slack else set(log_state.by_id)

        with self._lock:
            log_state, dropped = self.log.shorten(kept, fence)
            if not dropped and self._swept_for == log_state.incarnation:
                return RetentionReport()
            report = self._swept(log_state, dropped, guard)
            self._swept_for = log_state.incarnation
            return report

    def _swept(self, log_state: LogState, dropped: Sequence[Manifest], guard: Callable[[], None]) -> RetentionReport:
        incarnation = self.log.own_incarnation or log_state.incarnation
        files: list[FileInfo] = []
        for sink in self._tables(_EDGES):
            guard()
            files += self._sweep_outbox(self.outbox(sink), dropped, incarnation)
        for operator in self._tables(_STATE):
            guard()
            files += self._sweep_state(self.state(operator), dropped, incarnation)
        for edge in self._tables(_INFLIGHT):
            guard()
            files += self._sweep_edge(self.edge(edge), dropped, incarnation)
        guard()
        self._trim_logs()
        dead = [name for name in folders(self.location, _RUNS) if name.isdigit() and int(name) < incarnation]
        for name in dead:
            delete_folder(self.location, f"{_RUNS}/{name}")
        return RetentionReport(tuple(each.epoch for each in dropped), len(files), total_size(files), len(dead))

    def _sweep_outbox(self, outbox: Outbox, dropped: Sequence[Manifest], incarnation: int) -> list[FileInfo]:
        outbox.table.refreshed()
        kept = self.log.manifests()
        outbox.forget(kept)
        needed = staged_files(kept, outbox.sink) | outbox.table.live().keys()
        named = staged_files(dropped, outbox.sink)
        return _delete_garbage(outbox.location, f"ckpt-{outbox.sink}", needed, named, incarnation)

    def _sweep_state(self, state: StateTable, dropped: Sequence[Manifest], incarnation: int) -> list[FileInfo]:
        needed = state_files(self.log.manifests(), state.operator) | state.table.live().keys()
        return _delete_garbage(state.location, "", needed, state_files(dropped, state.operator), incarnation)

    def _sweep_edge(self, edge: InFlight, dropped: Sequence[Manifest], incarnation: int) -> list[FileInfo]:
        needed = segments(self.log.manifests(), edge.edge) | edge.table.live().keys()
        return _delete_garbage(edge.location, f"ckpt-{edge.edge}", needed, segments(dropped, edge.edge), incarnation)

    def _trim_logs(self) -> None:
        """Not each time that epochs go: it costs as much as all the rest, and nothing is old a moment later."""
        now_ms = self._now_ms()
        if self._trimmed_ms is not None and 0 <= now_ms - self._trimmed_ms < TRIM_EVERY_MS:
            return
        self._trimmed_ms = now_ms
        for sink in self._tables(_EDGES):
            trim(self.outbox(sink).location, [], now_ms)
        for edge in self._tables(_INFLIGHT):
            trim(self.edge(edge).location, [], now_ms)
        kept = self.log.manifests()
        for operator in self._tables(_STATE):
            state = self.state(operator)
            trim(state.location, state.versions(kept), now_ms)
        self.log.trim(now_ms)

    def _tables(self, folder: str) -> list[str]:
        return folders(self.location, folder)

    def _staged_at(self, sink: str, root: str, epoch: int, lacks: bool = False) -> Location | None:
        if not root:
            return self.outbox(sink).location
        if not lacks and epoch not in self.log.state().awaited(sink):
            return None
        elsewhere = Location(self._moved.get(sink, root), self.location.storage_options)
        return elsewhere if elsewhere.local is not None or bucket_of(elsewhere) == bucket_of(self.location) else None

    def _opened_log(self, job: str | None) -> EpochLog:
        epochs = self.location.child(_EPOCHS)
        log = EpochLog.open(epochs, job, create=False, verify=self.verify, now_ms=self._now_ms)
        if log is not None:
            return log
        if job is None:
            raise StoreForeign("there is no store here", store=self.location.uri, hint=HINT_NO_STORE)
        others: set[str] = set(self.location.entries()) - {_EPOCHS}
        if others:
            raise StoreForeign(
                "the location is not empty and holds no store",
                store=self.location.uri,
                found=", ".join(sorted(others)[:5]),
                hint="give an empty folder, or the folder of this job's store",
            )
        log = EpochLog.open(epochs, job, create=True, verify=self.verify, now_ms=self._now_ms)
        if log is None:
            raise StoreForeign("the control log could not be created", store=self.location.uri)
        return log


def _verify(place: Location, files: Sequence[StateFile | StagedFileRecord], deep: bool, **where: object) -> None:
    found = place.sizes(file.path for file in files)
    for file in files:
        check_size(file, found.get(file.path), **where, location=place.uri)
        if deep:
            compare(place, file, **where)


def compare(place: Location, file: StateFile | StagedFileRecord, **where: object) -> None:
    """Read the file and compare it with what was committed. Raises `EpochDamaged` with `where`."""
    if file.sha256:
        place.verify(file, **where, location=place.uri)
    else:
        place.read_committed(file, file.rows, **where)


def _delete_garbage(
    location: Location, prefix: str, needed: AbstractSet[str], forgotten: AbstractSet[str], incarnation: int
) -> list[FileInfo]:
    found = {info.path: info for info in location.list() if not info.path.startswith(f"{LOG}/")}
    gone = garbage(found, prefix, needed, forgotten, incarnation)
    location.delete(gone)
    return [found[path] for path in gone]
