"""The doctor's checks of a store: it can be read and written, and compare-and-swap works there."""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from spark_ckpt.cli.asked_sinks import refusal_of, sinks_behind
from spark_ckpt.cli.checks import Finding
from spark_ckpt.cli.list import driver_of
from spark_ckpt.cli.output import utc
from spark_ckpt.cli.readers import readers_of
from spark_ckpt.cli.stores import first_epoch
from spark_ckpt.cli.verify import damages
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.errors import CkptError, StoreForeign
from spark_ckpt.store import delta_log
from spark_ckpt.store.delta_log import Actions, CommitLost
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.existing import existing_store, job_of
from spark_ckpt.store.location import Location
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.stage_folder import stores_below
from spark_ckpt.store.store import Store
from spark_ckpt.wording import counted

_SCHEMA = pa.schema([("probe", pa.int64())])
_CONTENT = b"spark_ckpt doctor"
RACES, _LOCAL_RACES = 32, 4
"""Numbers of races. A server that checks first and writes later lets both writers win in one race of ten, measured with two
such servers. On a disk one system call creates a file."""
_START_S = 60.0
_OTHER = "give another location; if it is the job's store, bring its folder epochs back from a backup"
_LATE_MS = 3_600_000
"""Age of an epoch that is kept for a reader which is worth a warning."""


def store_findings(uri: str, options: Mapping[str, str]) -> Iterator[Finding]:
    """Check the content of `uri`, and if a job can use it. Creates and removes a folder next to the store's own."""
    try:
        location = store_location(uri, options)
        for each in stores_below(uri, options):  # the stages of a program
            yield from _contents(store_location(each, options))
        yield _writable(location)
    except CkptError as error:
        yield Finding("store", "fail", error.what, error.hint)


def _contents(location: Location) -> Iterator[Finding]:
    try:
        job_of(location)
    except StoreForeign as error:
        if location.list():
            yield Finding("store", "fail", f"{location.uri} holds other things than a store", _OTHER)
        else:
            yield Finding("store", "ok", f"{error.what} yet ({location.uri}): a job or an outbox can create one")
        return
    store = existing_store(location.uri, location.storage_options)
    log_state = store.log.state()
    holds = f"{counted(len(log_state.by_id), 'epoch')}, {counted(len(log_state.savepoints), 'savepoint')}"
    yield Finding("store", "ok", f"{log_state.kind} {log_state.job}, {holds}")
    yield Finding("driver", "ok", driver_of(log_state))
    yield _newest(store, log_state)
    yield from _sinks(store)
    yield from _readers(store, log_state)


def _sinks(store: Store) -> Iterator[Finding]:
    late, unknown = sinks_behind(store)
    for sink, why in unknown.items():
        yield Finding(f"sink {sink}", "warn", f"was not compared: {why}")
    if (error := refusal_of(store, late)) is not None:
        for each in late:
            yield Finding(f"sink {each.sink}", "fail", each.sentence, error.hint)


def _readers(store: Store, log_state: LogState) -> Iterator[Finding]:
    for reader in readers_of(store.log, log_state):
        check, old = f"reader of {reader.entry.row.edge}", wall_ms() - _LATE_MS
        late = bool(reader.held) and log_state.by_id[reader.held[0]].created_ms < old
        hint = (
            "start that job; the setting keep_for_readers of this one bounds how long rows wait for it" if late else ""
        )
        yield Finding(check, "warn" if late else "ok", reader.sentence, hint)


def _newest(store: Store, log_state: LogState) -> Finding:
    epoch = log_state.latest
    if not epoch:
        return Finding("newest epoch", "warn", f"the {log_state.kind} has none yet", first_epoch(log_state))
    why = damages(store, [epoch], deep=False)[0].get(epoch)
    if why is not None:
        return Finding("newest epoch", "fail", f"epoch {epoch}: {why}", "spark-ckpt verify STORE --deep")
    return Finding("newest epoch", "ok", f"epoch {epoch} of {utc(log_state.by_id[epoch].created_ms)} is whole")


def _writable(location: Location) -> Finding:
    """Write a file, read it back, and let two writers race for one table version: exactly one may win."""
    # Nothing may stay of the check: a folder that it creates for the store is removed as well.
    fresh = location.local is not None and not location.local.exists()
    probe = location.child(f"doctor-{uuid.uuid4().hex}")
    try:
        probe.write_bytes("probe", _CONTENT)
        if probe.read_bytes("probe") != _CONTENT:
            return Finding("store writes", "fail", "a file does not hold what was written", "use another location")
        return _compare_and_swap(probe)
    finally:
        _remove(location, probe, fresh)


def _compare_and_swap(probe: Location) -> Finding:
    delta_log.create_table(probe, _SCHEMA, "spark_ckpt doctor")
    won = sum(commit() for commit in _commits(probe))
    if won != 1:
        return _both_won("this location has no compare-and-swap") if won else _nobody_won("one after the other")
    # Then both race: a server may check that a file is absent and write it later.
    races = _LOCAL_RACES if probe.local is not None else RACES
    with ThreadPoolExecutor(2) as pool:
        for race in range(1, races + 1):
            won = _winners(pool, probe)
            if won > 1:
                return _both_won(f"its compare-and-swap does not hold when they come at the same moment (race {race})")
            if not won:
                return _nobody_won(f"at the same moment (race {race})")
    return Finding("store writes", "ok", f"read, written; of two writers exactly one wins, also in {races} races")


def _winners(pool: ThreadPoolExecutor, probe: Location) -> int:
    """Return the number of winners of two writers that begin at the same moment."""
    together = threading.Barrier(2)

    def race(commit: Callable[[], bool]) -> bool:
        together.wait(_START_S)
        return commit()

    return sum(pool.map(race, _commits(probe)))


def _commits(probe: Location) -> list[Callable[[], bool]]:
    """Return two commits of the same version. Each returns True if it won."""
    name = uuid.uuid4().hex
    size = probe.write_table(name, pa.table({"probe": [1]}, _SCHEMA)).size_bytes
    action = delta_log.added(name, size, "{}", data_change=True)
    # Opened before the race: both writers must believe in the same newest version.
    handles = [delta_log.open_table(probe) for _ in range(2)]
    return [partial(_committed, each, probe, [action]) for each in handles if each is not None]


def _committed(handle: DeltaTable, probe: Location, actions: Actions) -> bool:
    try:
        delta_log.commit(handle, probe, actions, _SCHEMA)
    except CommitLost:
        return False
    return True


def _both_won(why: str) -> Finding:
    hint = "use another location; for S3 check the deltalake storage options (conditional put or a locking provider)"
    return Finding("store writes", "fail", f"two writers both committed one version: {why}", hint)


def _nobody_won(how: str) -> Finding:
    hint = "try again; if it stays so, check the rights to create files, and the deltalake storage options"
    return Finding("store writes", "fail", f"neither of two writers could commit, {how}", hint)


def _remove(location: Location, probe: Location, fresh: bool) -> None:
    if probe.local is None:
        probe.delete([file.path for file in probe.list()])
        return
    shutil.rmtree(probe.local, ignore_errors=True)
    if fresh and location.local is not None:
        with contextlib.suppress(OSError):  # never created, or another process has put something there
            location.local.rmdir()
