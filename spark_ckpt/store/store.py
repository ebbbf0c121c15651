"""The store of one job: the epoch log, the tables derived from it, and the work that follows a commit.

The epoch log decides. State tables, staged tables and in-flight tables only show what manifests say, so that each can be
rebuilt.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

from spark_ckpt.content import check_size
from spark_ckpt.delta_files import LOG
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.records import Kind, Manifest, StagedFileRecord, StateFile
from spark_ckpt.epochs.retention import (
    Retention,
    RetentionReport,
    garbage,
    kept_epochs,
    segments,
    staged_files,
    state_files,
)
from spark_ckpt.epochs.sinks_behind import endpoints_now
from spark_ckpt.errors import EpochDamaged, LogDamaged, StoreForeign
from spark_ckpt.store import durable
from spark_ckpt.store.epoch_log import EpochLog, Fence, wall_ms
from spark_ckpt.store.folders import bucket_of, delete_folder, folders
from spark_ckpt.store.inflight import InFlight
from spark_ckpt.store.location import FileInfo, Location, total_size
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.spark_state import SparkStates
from spark_ckpt.store.staged_table import StagedTable
from spark_ckpt.store.state_table import StateTable
from spark_ckpt.store.trim import TRIM_EVERY_MS, trim

_log = logging.getLogger(__name__)
# In an empty folder the job would begin from nothing, and publish its rows again.
_LOG_GONE = (
    "if this is the job's store, its epoch log is gone: bring the folder epochs back from a backup (docs/backups.md); "
    "otherwise give an empty folder"
)
HINT_NO_STORE = "check the path; a job creates its store when it starts"
_READ = "read-e"
_STATE, _EDGES, _INFLIGHT, _RUNS, _EPOCHS, _SPARK = "state", "edges", "inflight", "runs", "epochs", "spark"


def _go_on() -> None:
    """Allow every step: the default guard."""


_NamedFiles = Callable[[Iterable[Manifest]], set[str]]
"""Function that returns the files of one table that manifests name."""


class Store:
    """The store of one job.

    `Store.open` creates instances. Thread-safe: a lock serialises materialization and retention.

    - `location`: the root folder.
    - `job`, `id`: the job's name and the store's UUID, both from the first row of the log.
    - `log`: the epoch log.

    Raises `EpochDamaged` if the log has no first row, because its creation was interrupted.
    """

    def __init__(
        self, location: Location, job: str | None, now_ms: Callable[[], int] = wall_ms, kind: Kind = "job"
    ) -> None:
        self.location = location = replace(location, root=location.local)
        self._kind: Kind = kind
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._states: dict[str, StateTable] = {}
        self._staged: dict[str, StagedTable] = {}
        self._inflight: dict[str, InFlight] = {}
        self.spark_states = SparkStates(location.child(_SPARK))
        """Files of the state of Spark's own operators."""
        # Incarnation that the last sweep was for. Each looks once for the files that dead drivers have left.
        self._swept_for = -1
        self._unswept: list[Manifest] = []
        """Epochs that this object has dropped, and whose files are not deleted yet."""
        self._shown: tuple[int, Mapping[str, Sequence[str]]] = -1, {}
        """An incarnation, and the tables that existed at its first update, by folder."""
        self._trimmed_ms: int | None = None
        self._roots: dict[str, str] = {}  # by sink: the place of its table now; a manifest may name an earlier one
        self.log = self._opened_log(job)
        log_state = self.log.state()
        if not log_state.store_id:
            raise EpochDamaged(
                "the store's log does not say whose it is",
                store=location.uri,
                hint="its creation was cut short: start the job, it completes it",
            )
        self.job, self.id, self._kind = valid_name("job", log_state.job), log_state.store_id, log_state.kind

    @classmethod
    def open(
        cls,
        uri: str,
        job: str,
        storage_options: Mapping[str, str] | None = None,
        now_ms: Callable[[], int] = wall_ms,
        kind: Kind = "job",
    ) -> Self:
        """Open the store at `uri`. Create it if the location is empty.

        - `job`: name of the job that the store belongs to.
        - `storage_options`: options for an object store, as deltalake takes them.
        - `now_ms`: the wall clock, milliseconds since 1970 UTC.
        - `kind`: kind of the owner that `job` names.

        Raises `ConfigInvalid` if the location cannot hold a store, `StoreForeign` for another job's store or other
        data, `FormatUnknown`, and a `StoreOutage`.
        """
        return cls(store_location(uri, storage_options), valid_name(kind, job), now_ms, kind)

    def reopened(self) -> Self:
        """Return another handle of the same store, for another thread or a command."""
        return type(self)(self.location, self.job, self._now_ms, self._kind)

    def state(self, operator: str) -> StateTable:
        """Return the state table of `operator`."""
        with self._lock:
            if operator not in self._states:
                location = self.location.child(_STATE, valid_name("operator", operator))
                self._states[operator] = StateTable(location, operator, self.log)
            return self._states[operator]

    def staged(self, sink: str) -> StagedTable:
        """Return the staged rows of `sink`."""
        with self._lock:
            if sink not in self._staged:
                location = self.location.child(_EDGES, valid_name("sink", sink))
                self._staged[sink] = StagedTable(location, sink, self.log)
            return self._staged[sink]

    def published_edges(self) -> dict[str, str]:
        """Return the edges that other jobs may read, each with its columns as Spark's JSON."""
        columns = {name: self.staged(name).declared() for name in self._tables(_EDGES)}
        return {name: text for name, text in columns.items() if text is not None}

    def edge(self, name: str) -> InFlight:
        """Return the in-flight segments of the edge `name`."""
        with self._lock:
            if name not in self._inflight:
                location = self.location.child(_INFLIGHT, valid_name("edge", name))
                self._inflight[name] = InFlight(location, name, self.log)
            return self._inflight[name]

    def run_folder(self, incarnation: int) -> Location:
        """Return the folder of Spark's own checkpoints of one incarnation. Its content is disposable."""
        return self.location.child(_RUNS, str(incarnation))

    def reading_folder(self, epoch: int, index: str) -> Path | None:
        """Return the folder in which Spark reads the state of its own operators at an epoch; retention deletes it. None for a
        store in an object store.
        """
        folder = self.location.local
        return folder and folder / _RUNS / f"{_READ}{epoch}-{index.removesuffix('-index.json')}"

    def set_root(self, sink: str, root: str) -> None:
        """Set the place of the table of `sink`. Files of epochs from before a move of the table are there, too."""
        self._roots[sink] = root

    def verify_for(self, taken_back: Mapping[str, int]) -> Callable[[Manifest], None]:
        """Return `verify` with `taken_back` filled in: per sink the newest epoch that it has."""
        return partial(self.verify, taken_back=taken_back)

    def verify(
        self, manifest: Manifest, deep: bool = False, taken_back: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Check that every file of the epoch exists with its recorded size. With `deep`, compare the bytes, too.

        Files staged outside of the store are checked if they are deferred, or while the epoch is unpublished. After the
        publish they belong to the sink.

        - `taken_back`: per sink the newest epoch that it has. Later epochs count as unpublished there.

        Raises `EpochDamaged`.
        """
        for operator, snapshot in manifest.operators.items():
            # State and in-flight files lie in the store, so a restore needs all of them regardless of the sinks.
            place = self.state(operator).location
            _verify(place, snapshot.files, deep, epoch=manifest.epoch, operator=operator)
        for edge, cut in manifest.edges.items():
            _verify(self.edge(edge).location, cut.files, deep, epoch=manifest.epoch, edge=edge)
        if manifest.spark_state is not None:
            self.spark_states.verify(manifest.spark_state, deep, epoch=manifest.epoch)
        for sink, output in (*manifest.outputs.items(), *manifest.held.items()):
            # A job that continues from the epoch publishes its deferred rows, also if the sink has later epochs.
            lacks = sink in manifest.held or manifest.epoch > taken_back.get(sink, manifest.epoch)
            staged_at = self._staged_at(sink, output.root, manifest, lacks)
            if staged_at is not None:
                _verify(staged_at, output.files, deep, epoch=manifest.epoch, sink=sink)

    def materialize(
        self, manifest: Manifest, incarnation: int | None = None, guard: Callable[[], None] = _go_on
    ) -> None:
        """Make every table of the store show the epoch of `manifest`. Idempotent; it runs after the commit.

        After a restore, call it once with `RecoveryPoint.manifest`: the tables then show the restored epoch again.

        - `incarnation`: the incarnation that continues from the epoch. Default: this object's own incarnation, else the
          manifest's.
        - `guard`: called before each table; it may raise to stop the work.
        """
        ours = incarnation or self.log.own_incarnation or manifest.incarnation
        with self._lock:
            # A standby under the checkpoint lease materializes epochs that the driver has committed.
            if manifest.epoch not in self.log.known().by_id:
                self.log.state()
            # Tables that exist but are not in the manifest take part, too: after a restore they must drop later
            # epochs. An incarnation lists them once, because it creates the others itself.
            if self._shown[0] != ours:
                self._shown = ours, {folder: self._tables(folder) for folder in (_STATE, _EDGES, _INFLIGHT)}
            there = self._shown[1]
            tables: list[StateTable | StagedTable | InFlight] = []
            tables += map(self.state, sorted({*manifest.operators, *there[_STATE]}))
            tables += map(self.staged, sorted({*manifest.outputs, *there[_EDGES]}))
            tables += map(self.edge, sorted({*manifest.edges, *there[_INFLIGHT]}))
            for table in tables:
                guard()
                table.materialize(manifest, ours)

    def retain(
        self, policy: Retention, guard: Callable[[], None] = _go_on, fence: Fence = lambda log_state: None
    ) -> RetentionReport:
        """Drop old epochs from the log and delete the files that no kept epoch needs.

        It may stop at any point and be repeated.

        - `policy`: the epochs to keep.
        - `guard`: called before each table's files are deleted; it may raise to stop the work.
        - `fence`: called with the log state that epochs are dropped from; it may raise.

        Nothing is deleted while the manifest of a kept epoch is damaged.

        Returns the number of epochs, files, bytes and folders that were removed. Raises `Fenced` if a newer incarnation
        replaced this object's own, and the errors of `fence` and `guard`.
        """

        def kept(log_state: LogState) -> set[int]:
            newest = self.log.manifest(log_state.latest).rows_so_far if log_state.readers and log_state.latest else {}
            now_ms = self._now_ms()
            if self.log.own_incarnation is None:
                # A standby's clock may be days ahead of the driver's, by which the epochs have their times.
                now_ms = min(now_ms, log_state.renewed_ms)
            keep = kept_epochs(log_state, policy, now_ms, newest)
            return keep if policy.drops(len(keep), len(log_state.by_id) - len(keep)) else set(log_state.by_id)

        with self._lock:
            # A driver asks after each epoch, and mostly nothing is to do. Its own rows tell it that, without a request.
            known = self.log.known()
            is_swept = self.log.own_incarnation == known.incarnation == self._swept_for and not self._unswept
            if is_swept and kept(known) >= known.by_id.keys():
                return RetentionReport()
            log_state, dropped = self.log.shorten(kept, fence)
            # Kept until the files are deleted: no later sweep of this incarnation would find them without their manifests.
            self._unswept += dropped
            # One sweep per incarnation even without dropped epochs: it finds the files that a dead incarnation left.
            if not self._unswept and self._swept_for == log_state.incarnation:
                return RetentionReport()
            report = self._swept(log_state, self._unswept, guard)
            self._swept_for, self._unswept = log_state.incarnation, []
            return report

    def _swept(self, log_state: LogState, dropped: Sequence[Manifest], guard: Callable[[], None]) -> RetentionReport:
        incarnation = self.log.own_incarnation or log_state.incarnation
        files: list[FileInfo] = []
        # Each table reads the log again, but parses no manifest twice.
        known: dict[str, Manifest] = {}
        try:
            self.log.manifests(known=known)
        except EpochDamaged as damage:
            # The files that it names are unknown, and an operator may bring its row back from a backup.
            _log.warning("job=%s retention deletes no files: %s", self.job, damage.what)
            return RetentionReport(tuple(each.epoch for each in dropped))
        for sink in self._tables(_EDGES):
            guard()
            staged = self.staged(sink)
            # The table first, then the log: every live file then belongs to an epoch that the log has.
            staged.table.refreshed()
            staged.forget(self.log.manifests(known=known))
            named: _NamedFiles = partial(staged_files, sink=sink)
            files += self._swept_table(staged, f"ckpt-{sink}", named, dropped, incarnation, known)
        for operator in self._tables(_STATE):
            guard()
            named = partial(state_files, operator=operator)
            files += self._swept_table(self.state(operator), "", named, dropped, incarnation, known)
        for edge in self._tables(_INFLIGHT):
            guard()
            named = partial(segments, edge=edge)
            files += self._swept_table(self.edge(edge), f"ckpt-{edge}", named, dropped, incarnation, known)
        guard()
        files += self.spark_states.sweep(self.log.manifests(known=known), dropped, incarnation)
        guard()
        self._trim_logs(known)
        # Spark's checkpoints of an earlier incarnation are never read again: each incarnation begins with a fresh
        # one.
        dead = [name for name in folders(self.location, _RUNS) if name.isdigit() and int(name) < incarnation]
        # Copies in which Spark reads the state of its own operators, e.g. for `state_frame`, go with their epochs.
        gone = tuple(f"{_READ}{each.epoch}-" for each in dropped)
        dead += [name for name in folders(self.location, _RUNS) if name.startswith(gone)] if gone else []
        for name in dead:
            delete_folder(self.location, f"{_RUNS}/{name}")
        return RetentionReport(tuple(each.epoch for each in dropped), len(files), total_size(files), len(dead))

    def _swept_table(
        self,
        table: StateTable | StagedTable | InFlight,
        prefix: str,
        named: _NamedFiles,
        dropped: Sequence[Manifest],
        incarnation: int,
        known: dict[str, Manifest],
    ) -> list[FileInfo]:
        # A file that the table still shows may be read by someone right now, so it stays.
        needed = named(self.log.manifests(known=known)) | table.table.live().keys()
        found = {info.path: info for info in table.location.list() if not info.path.startswith(f"{LOG}/")}
        gone = garbage(found, prefix, needed, named(dropped), incarnation)
        table.location.delete(gone)
        return [found[path] for path in gone]

    def _trim_logs(self, known: dict[str, Manifest]) -> None:
        """Trim the tables' Delta logs, at most once per `TRIM_EVERY_MS`."""
        now_ms = self._now_ms()
        # Trimming lists every log, which costs as much as the whole sweep. No commit becomes old within a minute.
        if self._trimmed_ms is not None and 0 <= now_ms - self._trimmed_ms < TRIM_EVERY_MS:
            return
        self._trimmed_ms = now_ms
        for sink in self._tables(_EDGES):
            trim(self.staged(sink).location, [], now_ms)
        for edge in self._tables(_INFLIGHT):
            trim(self.edge(edge).location, [], now_ms)
        kept = self.log.manifests(known=known)
        for operator in self._tables(_STATE):
            state = self.state(operator)
            # As `trim` does with a commit that cannot be read, or that another process has just deleted: the table serves
            # readers only, and an error would end the job.
            with suppress(LogDamaged, FileNotFoundError):
                # Only state tables keep versions of kept epochs, for readers that use `versionAsOf`.
                trim(state.location, state.versions(kept), now_ms)
        self.log.trim(now_ms)

    def _tables(self, folder: str) -> list[str]:
        return folders(self.location, folder)

    def _staged_at(self, sink: str, root: str, manifest: Manifest, lacks: bool) -> Location | None:
        if not root:
            return self.staged(sink).location
        # A published file belongs to the sink, which may compact or delete it. Its absence is no damage.
        if not lacks and manifest.epoch not in self.log.state().unsettled(sink):
            return None
        place = self._roots.get(sink) or self._moved_to(sink, manifest) or root
        elsewhere = Location(place, self.location.storage_options)
        # These storage options open no other bucket, so a file there cannot be checked.
        return elsewhere if elsewhere.local is not None or bucket_of(elsewhere) == bucket_of(self.location) else None

    def _moved_to(self, sink: str, manifest: Manifest) -> str | None:
        """Return the place to which the table of `sink` was moved after the epoch, None if it was not: a command has no sinks,
        which would name it.
        """
        before = manifest.sink_identities.get(sink)
        now = endpoints_now(self.log.state(), self.log.manifest).get(sink)
        # A table that replaced another one has no files of earlier epochs.
        if before is None or now is None or now.after >= manifest.epoch:
            return None
        place = now.parts.get("path")
        return None if place == before.parts.get("path") else place

    def _opened_log(self, job: str | None) -> EpochLog:
        epochs = self.location.child(_EPOCHS)
        log = EpochLog.open(epochs, job, create=False, verify=self.verify, now_ms=self._now_ms, kind=self._kind)
        if log is not None:
            return log
        if job is None:
            raise StoreForeign("there is no store here", store=self.location.uri, hint=HINT_NO_STORE)
        # Checked before anything is created: a mistyped location must not become a store in the middle of other data.
        others: set[str] = set(self.location.entries()) - {_EPOCHS}
        # The log folder may exist alone: a creation that was interrupted is completed.
        if others:
            raise StoreForeign(
                "the location is not empty and holds no store",
                store=self.location.uri,
                found=", ".join(sorted(others)[:5]),
                hint=_LOG_GONE
                if others & {_STATE, _EDGES, _INFLIGHT, _RUNS}
                else "give an empty folder, or the folder of this job's store",
            )
        if self.location.local is not None:
            durable.make_folder(self.location.local)
        log = EpochLog.open(epochs, job, create=True, verify=self.verify, now_ms=self._now_ms, kind=self._kind)
        if log is None:
            raise StoreForeign("the epoch log could not be created", store=self.location.uri)
        return log


def _verify(place: Location, files: Sequence[StateFile | StagedFileRecord], deep: bool, **where: object) -> None:
    # Every start does this for the newest epoch, so it compares sizes only. A reader compares the bytes before it uses
    # them.
    found = place.sizes(file.path for file in files)
    for file in files:
        check_size(file, found.get(file.path), **where, location=place.uri)
        if deep:
            compare(place, file, **where)


def compare(place: Location, file: StateFile | StagedFileRecord, **where: object) -> None:
    """Read `file` below `place` and compare it with the committed record.

    For a file without a known digest, its footer, page checksums and row count are checked.

    Raises `EpochDamaged` with the context `where`, and a `StoreOutage`.
    """
    if file.sha256:
        place.verify(file, **where, location=place.uri)
    else:
        place.read_committed(file, file.rows, **where)
