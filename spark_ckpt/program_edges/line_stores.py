"""The stores of several programs as one graph, and a restore of all of them to one line.

The logs are the journal of a restore. It begins an incarnation in every store that continues from the epoch of the line,
which fences a driver that still runs. Its lease has a name that blocks every start until the restore has reached all
stores. A restore that was killed is run again with the same target: it finds its own leases and continues. Once all
stores are restored, one log says so: from then on the restore only frees leases, and programs that started stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile

from spark_ckpt.epochs.lines import UNDONE, CutEpoch, Input, Line, Program
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.readers import Standing, standing
from spark_ckpt.epochs.records import Manifest, Position
from spark_ckpt.epochs.restore import RESTORED_LINE, RESTORING_LINE
from spark_ckpt.errors import CkptError, ConfigInvalid, EpochDamaged, EpochNotFound, StoreInUse
from spark_ckpt.program_edges.following import position_of
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.proposals import is_held, refuse_if_restoring
from spark_ckpt.store.store import Store

_LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ProgramStore:
    """A program's store, with its log state and the manifests of one branch, oldest first: the current one, or another.

    Epochs whose manifest is damaged are missing, but never the newest.
    """

    name: str
    store: Store
    log_state: LogState
    manifests: tuple[Manifest, ...]

    @property
    def branch(self) -> LogState:
        """The log state as if its current branch were this one."""
        return replace(self.log_state, latest=self.manifests[-1].epoch)

    def damaged(self, edge: str) -> frozenset[int]:
        """Return the epochs of the branch that may have rows for `edge`, and whose manifest is damaged."""
        readable = {each.epoch for each in self.manifests}
        return frozenset(
            brief.epoch
            for brief in self.log_state.lineage(self.manifests[-1].epoch)
            if edge in brief.sinks and brief.epoch not in readable
        )


@dataclass(frozen=True, slots=True)
class Outside:
    """An end of an edge whose store was not given: `program` reads from it (`reads`), or is read there."""

    program: str
    edge: str
    place: str
    reads: bool


@dataclass(frozen=True, slots=True)
class StoreLines:
    """Programs of several stores, joined by their edges."""

    stores: Mapping[str, ProgramStore]
    programs: Mapping[str, Program]
    outside: tuple[Outside, ...]


def read_stores(stores: Sequence[Store], ends: Mapping[str, int] | None = None) -> StoreLines:
    """Read the logs of the stores.

    `ends`: by program the epoch that ends the branch to read; the current branch of a program that is missing.

    Raises `ConfigInvalid` for a store given twice, of an outbox, or without an epoch; `EpochNotFound` for an end.
    """
    if len({store.id for store in stores}) < len(stores):
        raise ConfigInvalid("a store is given twice", hint="give the store of each program once")
    shared = {job for job, count in Counter(store.job for store in stores).items() if count > 1}
    # A place tells two jobs of one name apart.
    named = {store.location.uri if store.job in shared else store.job: store for store in stores}
    known = {name: _read(name, store, (ends or {}).get(name)) for name, store in named.items()}
    by_id = {each.log_state.store_id: each for each in known.values()}  # an edge names its sender by the store's id
    programs = {name: _program(each, by_id) for name, each in known.items()}
    return StoreLines(known, programs, tuple(_outside(known, by_id)))


def restore_line(known: StoreLines, line: Line, target: str, fence: bool) -> dict[str, int]:
    """Restore every store to its epoch of the line; return the incarnations that did it.

    - `target`: the target as the user wrote it; it identifies the restore in the logs.
    - `fence`: take the lease from drivers that run. They end with `CKPT_FENCED`.

    Raises `StoreInUse` if a driver runs and `fence` is false. That changes nothing, except if the driver started
    meanwhile: then readers are restored already, and the same call continues.
    """
    name, freed = f"{RESTORING_LINE}{target}", freed_before(known, target)
    left = [program for program in _readers_first(known.programs) if program not in freed]
    if not fence:
        begun = [program for program, each in known.stores.items() if _is_own(each.log_state, name) or program in freed]
        for program in left:
            _refuse_running(known.stores[program], name, begun)
    holder, done = current_holder(name), {}
    # Readers first: none of them runs on with rows that its sender has undone already.
    for program in left:
        log, epoch = known.stores[program].store.log, line.epochs[program]
        log_state = log.state()
        refuse_if_restoring(log_state, holder, log.now_ms())
        # Programs that were freed may have changed the line that the target names; a store that was restored stays.
        if _is_own(log_state, name) and (freed or log_state.latest == epoch):
            done[program] = log_state.incarnation
            continue
        # A try that died holds the lease under this name.
        takes = fence or _is_own(log_state, name)
        # Without --fence no epoch may be left that came after the line was chosen.
        ended = None if takes else known.stores[program].log_state.lease_token
        try:
            done[program] = log.begin_incarnation(holder, epoch, _LEASE_MS, takeover=takes, ended=ended).incarnation
        except StoreInUse as error:
            error.context |= {"program": program} | ({"restored": ", ".join(done)} if done else {})
            raise
    # No lease is freed before all stores are restored: a program that starts earlier could read rows that its sender then undoes.
    # The lease that is freed last says so first. Otherwise a second try would undo epochs of a program that started between.
    last = left[-1]
    known.stores[last].store.log.release(done[last], f"{RESTORED_LINE}{target}", keeps=True)
    for program, incarnation in done.items():
        known.stores[program].store.log.release(incarnation, f"{RESTORED_LINE}{target}")
    return done


def freed_before(known: StoreLines, target: str) -> set[str]:
    """Return the programs that an interrupted restore to `target` has freed. They may have started since."""
    name = f"{RESTORING_LINE}{target}"
    own = {program: each.log_state for program, each in known.stores.items() if _is_own(each.log_state, name)}
    over = any(_is_over(log_state) for log_state in own.values())
    return known.stores.keys() - own.keys() if over else set()


def _is_over(log_state: LogState) -> bool:
    """Return true if the log says that the incarnation which holds its lease has ended."""
    return any(each.ended_ms and each.incarnation == log_state.incarnation for each in log_state.incarnations)


def before_restore(known: StoreLines, target: str) -> dict[str, int]:
    """Return the newest epoch of each program before a restore to `target`, also of one that was interrupted."""
    name, freed = f"{RESTORING_LINE}{target}", freed_before(known, target)
    return {program: _left(each.log_state, name, program in freed) for program, each in known.stores.items()}


def _left(log_state: LogState, name: str, freed: bool) -> int:
    # An interrupted restore has begun incarnations without an epoch, and may have released them already.
    ours = f"{name} (process "  # `Holder` as text begins with its name
    newest_first = iter(log_state.incarnations[::-1])
    if freed:  # a program that started since is no part of the time before the restore
        newest_first = dropwhile(lambda each: not each.holder.startswith(ours), newest_first)
    before = next((each for each in newest_first if not each.holder.startswith(ours)), None)
    if before is None:  # its rows are forgotten
        return log_state.latest
    taken = (brief.epoch for brief in log_state.by_id.values() if brief.incarnation == before.incarnation)
    return max(taken, default=before.base)


def _is_own(log_state: LogState, name: str) -> bool:
    return not log_state.is_free and log_state.holder is not None and log_state.holder.name == name


def _refuse_running(each: ProgramStore, name: str, begun: Sequence[str]) -> None:
    log_state = each.store.log.state()
    if is_held(log_state, each.store.log.now_ms()) and not _is_own(log_state, name):
        raise StoreInUse(
            f"a driver runs {each.name}; {'nothing was changed' if not begun else 'the restore is not over'}",
            restored=", ".join(begun) or None,
            holder=log_state.holder,
            hint="stop it, or give --fence: it ends with CKPT_FENCED, and its standby or next start continues from the line",
        )


def _readers_first(programs: Mapping[str, Program]) -> list[str]:
    left, order = dict(programs), list[str]()
    while left:
        senders = {each.sender for program in left.values() for each in program.inputs.values()}
        # In a loop every program has a reader; any one of them begins.
        free = [name for name in left if name not in senders] or [next(iter(left))]
        order += free
        left = {name: program for name, program in left.items() if name not in free}
    return order


def _read(name: str, store: Store, end: int | None) -> ProgramStore:
    log_state = store.log.state()
    if log_state.kind != "job":
        raise ConfigInvalid(
            f"{store.location.uri} is the store of outbox '{log_state.job}'",
            hint="spark-ckpt rewind plan --outbox STORE restores its query; an outbox has no edges, so no line goes through it",
        )
    if end is not None and end not in log_state.by_id:
        kept = ", ".join(str(brief.epoch) for brief in log_state.epochs) or "none"
        raise EpochNotFound(f"{name} does not keep epoch {end}", kept=kept, hint="choose one of these")
    branch = [brief.epoch for brief in log_state.lineage(end)][::-1]
    if not branch:
        raise ConfigInvalid(f"job '{store.job}' has no epoch yet", hint="start it, or leave its store out")
    found = store.log.readable(branch)
    if any(isinstance(each, EpochNotFound) for each in found.values()):
        # Retention of the running driver came between the two reads of the log.
        return _read(name, store, end)
    for epoch, each in found.items():
        # A damaged manifest of an older epoch takes only this epoch out of the lines.
        if isinstance(each, CkptError) and (epoch == branch[-1] or not isinstance(each, EpochDamaged)):
            raise each
    return ProgramStore(name, store, log_state, tuple(each for each in found.values() if isinstance(each, Manifest)))


def _edge_sources(manifest: Manifest) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the sources of a manifest that are edges, with their endpoints."""
    yield from ((name, parts) for name, parts in manifest.source_identities.items() if parts.get("kind") == "edge")


def _program(each: ProgramStore, by_id: Mapping[str, ProgramStore]) -> Program:
    newest = each.manifests[-1]
    # With the newest epoch whose rows may be deleted: in a line the reader must have them.
    inputs = {
        source: Input(
            sender.name,
            parts["edge"],
            sender.manifests[0].rows_before.get(parts["edge"], 0),
            sender.damaged(parts["edge"]),
        )
        for source, parts in _edge_sources(newest)
        if (sender := by_id.get(parts["store id"])) is not None
    }
    epochs = [
        CutEpoch(
            manifest.epoch,
            manifest.created_ms,
            brief.index,
            brief.after,
            {
                source: _read_up_to(manifest, source, by_id[parts["store id"]], parts["edge"])
                for source, parts in _edge_sources(manifest)
                if parts["store id"] in by_id and source in inputs
            },
        )
        for manifest in each.manifests
        if (brief := each.log_state.by_id[manifest.epoch])
    ]
    return Program(each.name, tuple(epochs), inputs)


def _read_up_to(manifest: Manifest, source: str, sender: ProgramStore, edge: str) -> int:
    if source not in manifest.cursors:
        return 0  # the program had not begun to read it
    position: Position = position_of(manifest.cursors[source])
    match standing(sender.branch, position, partial(_rows_before, sender, edge)):
        case Standing.UNDONE:
            return UNDONE
        case Standing.GONE if not position.whole:
            # Its rest is deleted: rows of this epoch are missing, as if none had been read.
            return position.epoch - 1
    if not position.whole and position.epoch in sender.damaged(edge):
        # The reader never gets its rest, and what it has would come twice from a sender before it.
        return UNDONE
    return position.epoch


def _rows_before(sender: ProgramStore, edge: str, epoch: int) -> int:
    # Only the oldest epoch of the branch is asked for. If it is damaged, the next one knows its rows.
    found = next(each for each in sender.manifests if each.epoch >= epoch)
    return found.rows_before.get(edge, 0)


def _outside(known: Mapping[str, ProgramStore], by_id: Mapping[str, ProgramStore]) -> Iterator[Outside]:
    for each in known.values():
        for _, parts in _edge_sources(each.manifests[-1]):
            if parts["store id"] not in by_id:
                yield Outside(each.name, parts["edge"], parts.get("path", ""), reads=True)
        for entry in each.log_state.readers.values():
            # The place of a reader is a folder of its job's store.
            if not any(entry.row.place.startswith(f"{one.store.location.uri}/") for one in known.values()):
                yield Outside(each.name, entry.row.edge, entry.row.place, reads=False)
