"""Comparison of the endpoints of a job with those that its epochs were made with. Pure: no I/O.

A sink is compared with the newest record in the log, regardless of the restored epoch: its marker only moves forward. A
source is compared with the restored epoch, because the job continues from that epoch's cursor.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from spark_ckpt.connector import Cursor
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.parts import described, differing
from spark_ckpt.epochs.records import Manifest, SinkIdentity
from spark_ckpt.epochs.restore import LATEST, Read, RestoreTarget
from spark_ckpt.errors import UNREADABLE, ConfigInvalid, IdentityChanged, RowsLost
from spark_ckpt.wording import one_or_many

Parts = Mapping[str, str]
"""Identity of an endpoint as `connector.Identified` returns it; empty if the connector has none."""

Whole = Callable[[], Iterator[Manifest]]
"""Function that yields the restorable epochs, newest first, each verified when it is requested."""

Unpublished = Mapping[str, Sequence[Manifest]]
"""Per sink the committed epochs that it has not acknowledged."""

PastLost = Callable[[Cursor], Cursor]
"""Function from a cursor to the one behind lost rows: `connector.SkipsLost.past_lost`."""

CONF_KEYS = re.compile(r" \(--conf [^)]*\)")
"""Conf keys of a start, as `Confirmed.call` adds them. An outbox has none, and those of a stage count for every stage."""

PLACE = "path"
"""Part that may change while the endpoint stays the same."""


@dataclass(frozen=True, slots=True)
class Found:
    """Present endpoints of the job's sources and sinks."""

    sources: Mapping[str, Parts] = field(default_factory=dict)
    sinks: Mapping[str, Parts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """Endpoints in the log: sources as of the restored epoch, sinks as of the newest one.

    - `whole`: the restorable epochs, newest first (`whole_manifests`); used only for recovery advice in errors.
    - `restore`: number of the restored epoch, if the start names it, or if it is not the one that "latest" means.
    """

    sources: Mapping[str, Parts] = field(default_factory=dict)
    sinks: Mapping[str, SinkIdentity] = field(default_factory=dict)
    whole: Whole = field(default=lambda: iter(()), compare=False)
    restore: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Changes that the operator confirmed by name: another sink, another source, the same endpoint at another place, an
    operator or source that the job no longer has, a source that has lost rows.
    """

    new_sinks: frozenset[str] = frozenset()
    new_sources: frozenset[str] = frozenset()
    moved: frozenset[str] = frozenset()
    dropped_operators: frozenset[str] = frozenset()
    dropped_sources: frozenset[str] = frozenset()
    lost_rows: frozenset[str] = frozenset()

    def call(self, restore: RestoreTarget = LATEST) -> str:
        """Return the start with these confirmations, and the conf keys that confirm the same.

        Advice that leaves out what the refused start has confirmed is refused for that again, and without `restore`
        it starts from another epoch.
        """
        given = [] if restore == LATEST else [f"restore={restore!r}"]
        conf: list[str] = []
        for argument, names in (
            ("accept_new_sink", self.new_sinks),
            ("accept_new_source", self.new_sources),
            ("accept_moved", self.moved),
            ("accept_dropped_operator", self.dropped_operators),
            ("accept_dropped_source", self.dropped_sources),
            ("accept_lost_rows", self.lost_rows),
        ):
            if names:
                shown: object = next(iter(names)) if len(names) == 1 else sorted(names)
                given.append(f"{argument}={shown!r}")
                setting = f"spark.ckpt.{argument.replace('_', '.')}={','.join(sorted(names))}"
                conf.append(f"--conf {shlex.quote(setting)}")  # the name of Spark's own operators has a blank
        return f"job.start({', '.join(given)})" + (f" ({' '.join(conf)})" if conf else "")


@dataclass(frozen=True, slots=True)
class Standing:
    """Endpoints that a start has settled.

    - `fresh`: sources that are new under an old name; they begin at their configured start.
    - `dropped`: sources that the job no longer has.
    - `skipped`: cursors behind lost rows, of the sources that have lost some.
    - `unneeded`: confirmations of things that have not changed.
    """

    sources: Mapping[str, Parts] = field(default_factory=dict)
    sinks: Mapping[str, SinkIdentity] = field(default_factory=dict)
    fresh: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    skipped: Mapping[str, dict[str, JsonValue]] = field(default_factory=dict)
    unneeded: tuple[str, ...] = ()

    def published(self, sink: str, acked: int) -> tuple[int, int | None]:
        """Return the newest epoch that this endpoint has acknowledged (0 if none).

        If that is 0, the second value is the epoch after which the endpoint replaced another one, else None.
        """
        after = self.sinks[sink].after if sink in self.sinks else 0
        # An acknowledgement up to `after` came from the replaced endpoint.
        return (acked, None) if acked > after or not after else (0, after)

    def rows_before(self, sink: str, manifest: Manifest) -> int:
        """Return the newest epoch before `manifest`, on its branch, of which this endpoint has rows; 0 if there is
        none.
        """
        before = manifest.rows_before.get(sink, 0)
        return 0 if self.is_before(sink, before) else before  # the replaced endpoint has those rows

    def is_before(self, sink: str, epoch: int) -> bool:
        """Return True if the epoch was committed before this endpoint replaced another one.

        It does not get such an epoch.
        """
        return sink in self.sinks and epoch <= self.sinks[sink].after

    def goes_on(self, cursors: Mapping[str, Cursor]) -> dict[str, Cursor]:
        """Return the cursors at which the sources with an unchanged endpoint continue."""
        unchanged = {name: cursor for name, cursor in cursors.items() if name not in self.fresh | self.dropped}
        return {**unchanged, **self.skipped}

    def is_complete(self, sink: str) -> bool:
        """Return True if every part of the sink's identity is known."""
        # A part is empty until the first publish has made the table or topic.
        return all(self.sinks[sink].parts.values()) if sink in self.sinks else True

    def with_sources(self, sources: Mapping[str, Parts]) -> Standing:
        """Return a copy with the source identities that a committed epoch records."""
        return replace(self, sources=dict(sources))

    def learned(self, sink: str, parts: Parts) -> Standing:
        """Return a copy with parts of the sink's identity that became known."""
        now = self.sinks[sink]
        return replace(self, sinks={**self.sinks, sink: now.model_copy(update={"parts": _merged(now.parts, parts)})})


@dataclass(frozen=True, slots=True)
class _IdentityChange:
    kind: str
    name: str
    known: Parts
    found: Parts

    @property
    def is_of_place(self) -> bool:
        """True if it may be the same endpoint at another place."""
        return bool(self.found) and set(differing(self.known, self.found)) == {PLACE} and bool(self.found.get(PLACE))


def known(log_state: LogState, base: Manifest, read: Read, whole: Whole, named: bool = False) -> Known:
    """Return the recorded endpoints for a job that continues from `base`. `whole`: see `Known`. `named`: the start names
    the epoch.
    """
    # The newest epoch of any branch: a restore takes no sink back, so its endpoint is the one that was published to
    # last.
    newest = newest_readable(log_state, base, read)
    unknown = {name for name in base.cursors if not base.source_identities.get(name)}
    # Epochs of a connector that had no identity yet record none. A later epoch may.
    later = _recorded_later(log_state, base, read, unknown) if unknown else {}
    sources = {name: base.source_identities.get(name) or later.get(name, {}) for name in base.cursors}
    # The advice in an error repeats `restore=`, so that following it does not start from another epoch.
    restore = None if base.epoch == log_state.latest and not named else base.epoch
    return Known(sources, newest.sink_identities, whole, restore)


def _recorded_later(log_state: LogState, base: Manifest, read: Read, names: Collection[str]) -> dict[str, Parts]:
    """Return the identities of these sources from the first epoch after `base` that has them."""
    found: dict[str, Parts] = {}
    for brief in log_state.epochs:
        if brief.epoch > base.epoch and not found.keys() >= set(names):
            try:
                told_there = read(brief.epoch).source_identities
            except UNREADABLE:
                continue
            # The oldest answer stays: a later epoch may already be of another endpoint.
            found = {**{name: told_there[name] for name in names if told_there.get(name)}, **found}
    return found


def newest_readable(log_state: LogState, base: Manifest, read: Read) -> Manifest:
    """Return the newest readable epoch of any branch."""
    for brief in reversed(log_state.epochs):
        if brief.epoch == base.epoch:
            return base
        try:
            return read(brief.epoch)
        except UNREADABLE:
            # A manifest that is damaged, or dropped meanwhile, must not block a start from another epoch.
            continue
    return base


def reconciled(known: Known, found: Found, confirmed: Confirmed, unpublished: Unpublished, last: int) -> Standing:
    """Return the endpoints that a start continues with. `last`: the highest id ever committed.

    Raises `IdentityChanged` for a change that is unconfirmed or impossible now. Raises `ConfigInvalid` for a
    confirmation of a name that the job does not have.
    """
    # First, so that a misspelt confirmation does not look like an unconfirmed change.
    _check_names(found, confirmed)
    known_sinks = {name: identity.parts for name, identity in known.sinks.items()}
    sources = _changes("source", known.sources, found.sources)
    sinks = _changes("sink", known_sinks, found.sinks)
    # `accept_moved` confirms only a change of the place. Any other change needs `accept_new_source` or
    # `accept_new_sink`.
    open_ = [
        change
        for change in (*sources.values(), *sinks.values())
        if change.name not in (confirmed.new_sources if change.kind == "source" else confirmed.new_sinks)
        and not (change.name in confirmed.moved and change.is_of_place)
    ]
    if open_:
        raise _refused(
            open_,
            {"source": known.sources, "sink": known_sinks},
            known.restore,
            confirmed=confirmed,
            rows_to_publish=lambda sinks: _with_rows({each: unpublished.get(each, ()) for each in sinks}),
            whole=known.whole,
        )
    # An endpoint that was replaced before its identity was recorded contradicts nothing: the confirmation alone tells.
    unrecorded = {name for name, parts in known_sinks.items() if name in found.sinks and not all(parts.values())}
    replaced = {*sinks, *unrecorded} & confirmed.new_sinks
    # A new endpoint has no marker, so it cannot tell which of these rows the old one has.
    check_unpublished({name: unpublished.get(name, ()) for name in sorted(replaced)}, known.whole, confirmed)
    for name, sink in known.sinks.items():
        # An earlier replacement still counts: the endpoint must not get rows from before it.
        if name not in replaced and name in found.sinks:
            _check_before(name, sink.after, unpublished.get(name, ()), known.whole, confirmed)
    return Standing(
        sources={
            name: _merged(_kept(known.sources, name, sources), parts) for name, parts in found.sources.items() if parts
        },
        sinks=_sinks(known.sinks, found.sinks, replaced, last),
        # A confirmed source that has not changed keeps its cursor: read from its start, its rows would come twice.
        fresh=frozenset(name for name in sources if name in confirmed.new_sources),
        dropped=confirmed.dropped_sources - found.sources.keys(),
        unneeded=_unneeded(confirmed, sources, {*sinks, *replaced}),
    )


def past_losses(
    standing: Standing, confirmed: Confirmed, cursors: Mapping[str, Cursor], past: Mapping[str, PastLost]
) -> Standing:
    """Return `standing` with the cursors behind lost rows, of the sources whose loss is confirmed.

    - `cursors`: those of the restored epoch. `past`: per source that can skip rows, its function.

    A confirmation of a source without a loss is unneeded. Raises `ConfigInvalid` for a source that cannot skip rows.
    """
    here, skipped = standing.goes_on(cursors), dict[str, dict[str, JsonValue]]()
    for name in sorted(confirmed.lost_rows):
        if name not in past:
            raise ConfigInvalid(
                f"accept_lost_rows names '{name}', which cannot continue behind lost rows",
                hint="drop the confirmation, and use the options of the source's own system",
            )
        # A source whose endpoint is new, or that no epoch has read, has no position that rows could be lost after.
        if name in here and (behind := past[name](here[name])) != here[name]:
            skipped[name] = json.loads(json.dumps(behind))  # as a manifest and a trace have it
    needless = (f"accept_lost_rows={name!r}" for name in sorted(confirmed.lost_rows - skipped.keys()))
    return replace(standing, skipped=skipped, unneeded=(*standing.unneeded, *needless))


def with_confirmation(
    error: RowsLost, sources: Sequence[str], restore: RestoreTarget, confirmed: Confirmed
) -> RowsLost:
    """Return the error with the call that continues without the lost rows of these sources.

    `restore`, `confirmed`: those of the start that is refused.
    """
    call = replace(confirmed, lost_rows=confirmed.lost_rows | set(sources)).call(restore)
    hint = f"{error.hint}; or continue without the rows: {call}"
    return RowsLost(error.what, hint=hint, **{**error.context, "source": ", ".join(sources)})


def still_confirmed(confirmed: Confirmed, before: Found, now: Found, read_on: bool) -> Confirmed:
    """Return the confirmations of a standby that count at its takeover: not those of an endpoint that was replaced since.

    `before`, `now`: endpoints when it was started, and at the takeover. `read_on`: the job has committed an epoch since, so
    rows that are lost now are others.
    """
    sources = _changes("source", before.sources, now.sources).keys()
    sinks = _changes("sink", before.sinks, now.sinks).keys()
    return replace(
        confirmed,
        new_sources=confirmed.new_sources - sources,
        new_sinks=confirmed.new_sinks - sinks,
        moved=confirmed.moved - {*sources, *sinks},
        lost_rows=frozenset() if read_on else confirmed.lost_rows,
    )


def check_unchanged(before: Found, now: Found) -> None:
    """Raise `IdentityChanged` if an endpoint changed while the job ran."""
    changes = [
        *_changes("source", before.sources, now.sources).values(),
        *_changes("sink", before.sinks, now.sinks).values(),
    ]
    if changes:
        raise _refused(changes, {"source": before.sources, "sink": before.sinks}, None)


def check_sink_unchanged(sink: str, before: Parts, now: Parts) -> None:
    """Raise `IdentityChanged` if the endpoint of a sink was replaced by another one while the job ran.

    An endpoint that is gone is no other one.
    """
    if not now or not before or not differing(before, now):
        return
    raise IdentityChanged(
        f"sink '{sink}' was re-created while rows were published to it, or is another one; the new one has no rows of this epoch",
        hint="bring the old one back and start the job",
        sink=sink,
        recorded=described(before),
        found=described(now),
    )


def still_the_same(known: Mapping[str, Parts], now: Mapping[str, Parts]) -> dict[str, dict[str, str]]:
    """Return the identities of a running job's sources, with parts that are new.

    Raises `IdentityChanged` for another endpoint.
    """
    changes = _changes("source", known, now)
    if changes:
        raise _refused(list(changes.values()), {"source": known}, None, running=True)
    found = {
        name: {**known.get(name, {}), **_merged(known.get(name, {}), parts)} for name, parts in now.items() if parts
    }
    return {name: dict(parts) for name, parts in known.items()} | found


def _changes(kind: str, known: Mapping[str, Parts], found: Mapping[str, Parts]) -> dict[str, _IdentityChange]:
    # Without recorded parts there is nothing to compare: the found parts become the record.
    pairs = {name: (known[name], parts) for name, parts in found.items() if known.get(name)}
    return {name: _IdentityChange(kind, name, old, new) for name, (old, new) in pairs.items() if differing(old, new)}


def _kept(known: Mapping[str, Parts], name: str, changed: Collection[str]) -> Parts:
    # Parts of a replaced endpoint must not be merged into those of the new one.
    return {} if name in changed else known.get(name, {})


def _merged(known: Parts, found: Parts) -> dict[str, str]:
    """Return the found parts. A part that is unknown this time keeps its value."""
    return {name: value or known.get(name, "") for name, value in found.items()}


def _sinks(
    known: Mapping[str, SinkIdentity], found: Mapping[str, Parts], replaced: Collection[str], last: int
) -> dict[str, SinkIdentity]:
    # Sinks that the job has dropped stay recorded, in case their names return.
    sinks = dict(known)
    for name, parts in found.items():
        before = known.get(name)
        if name in replaced:
            # Epochs up to `last` belong to the old endpoint. They never count as published by this one.
            sinks[name] = SinkIdentity(parts=dict(parts), after=last)
        elif before is not None:
            sinks[name] = SinkIdentity(parts=_merged(before.parts, parts), after=before.after)
        elif parts:
            sinks[name] = SinkIdentity(parts=dict(parts))
    return sinks


def _check_names(found: Found, confirmed: Confirmed) -> None:
    every = {*found.sources, *found.sinks}
    for setting, names, there in (
        ("accept_new_source", confirmed.new_sources, set(found.sources)),
        ("accept_lost_rows", confirmed.lost_rows, set(found.sources)),
        ("accept_new_sink", confirmed.new_sinks, set(found.sinks)),
        ("accept_moved", confirmed.moved, every),
    ):
        if unknown := sorted(names - there):
            raise ConfigInvalid(
                f"{setting} names '{unknown[0]}', which the job does not have",
                hint=f"one of: {', '.join(sorted(there))}",
            )


def _unneeded(confirmed: Confirmed, sources: Collection[str], sinks: Collection[str]) -> tuple[str, ...]:
    needless = [f"accept_new_source={name!r}" for name in sorted(confirmed.new_sources - set(sources))]
    needless += [f"accept_new_sink={name!r}" for name in sorted(confirmed.new_sinks - set(sinks))]
    return (*needless, *(f"accept_moved={name!r}" for name in sorted(confirmed.moved - {*sources, *sinks})))


def check_unpublished(unpublished: Unpublished, whole: Whole, confirmed: Confirmed) -> None:
    """Raise `IdentityChanged` if an old endpoint may have rows of committed epochs: the new one could get them twice.

    - `unpublished`: epochs that may have such rows, per sink that is replaced.
    - `whole`: the restorable epochs. `confirmed`: by the start that is refused.
    """
    if rows := _with_rows(unpublished):
        back = free_of(rows, whole)
        raise IdentityChanged(
            "; ".join(
                f"sink '{sink}' cannot be replaced yet: it is not known to have the rows of committed epochs: {_numbers(of)}"
                for sink, of in rows.items()
            ),
            # Also without the confirmation: a topic has no recorded id before its first publish, and would count as replaced again.
            hint=f"start the job once with {one_or_many(len(rows), 'the sink as it was', 'the sinks as they were')} and without "
            f"accept_new_sink, so that they are published; if that is gone for good, {confirmed.call(back)} produces their rows "
            f"again, for every sink (see `spark-ckpt restore STORE {back}`)",
        )


def _numbers(manifests: Iterable[Manifest]) -> str:
    return ", ".join(str(each.epoch) for each in manifests)


def _with_rows(unpublished: Unpublished) -> dict[str, list[Manifest]]:
    """Return per sink the epochs that have rows for it; without the sinks that have none."""
    rows = {
        sink: [each for each in of if any(sink in to and to[sink].files for to in (each.outputs, each.held))]
        for sink, of in unpublished.items()
    }
    return {sink: of for sink, of in rows.items() if of}


def _check_before(sink: str, after: int, manifests: Iterable[Manifest], whole: Whole, confirmed: Confirmed) -> None:
    """Raise `IdentityChanged` if rows from before the replacement were never published: neither endpoint gets them."""
    rows = [each for each in manifests if each.epoch <= after and sink in each.outputs and each.outputs[sink].files]
    if rows:
        back = free_of({sink: rows}, whole)
        raise IdentityChanged(
            f"sink '{sink}' took the place of another one after epoch {after}, and neither is known to have the rows of committed "
            f"epochs: {_numbers(rows)}",
            hint=f"{confirmed.call(back)} produces their rows again, for every sink "
            f"(see `spark-ckpt restore STORE {back}`)",
        )


def free_of(rows: Unpublished, whole: Whole) -> int:
    """Return the newest restorable epoch before all of these that defers nothing for their sinks; 0 if there is none."""
    oldest = min(each.epoch for of in rows.values() for each in of)
    # Deferred rows of the epoch would have to be published to the new endpoint, too.
    free = (each.epoch for each in whole() if not any(sink in each.held and each.held[sink].files for sink in rows))
    return next((epoch for epoch in free if epoch < oldest), 0)


def _refused(
    changes: Sequence[_IdentityChange],
    known: Mapping[str, Mapping[str, Parts]],
    restore: int | None,
    *,
    running: bool = False,
    confirmed: Confirmed = Confirmed(),
    rows_to_publish: Callable[[Collection[str]], Unpublished] = lambda _: {},
    whole: Whole = lambda: iter(()),
) -> IdentityChanged:
    """`confirmed`: by the start that is refused. `rows_to_publish`: epochs with unpublished rows, of given sinks."""
    names = [f"{each.kind} '{each.name}'" for each in changes]
    context: dict[str, str] = {}
    for each in changes:
        prefix = f"{each.kind} {each.name} " if len(changes) > 1 else ""
        context |= {f"{prefix}recorded": described(each.known), f"{prefix}found": described(each.found)}
    # A Kafka broker whose metadata lags hides a re-created topic for a moment.
    then = (
        "an epoch has rows of a new one only if it answered with the old identity" if running else "nothing was changed"
    )

    def call(moved: Collection[_IdentityChange]) -> str:
        """Return the start that confirms every change: one that leaves out some is refused for them."""
        every = _all_confirmed(changes, moved, confirmed)
        rows = rows_to_publish({each.name for each in changes if each.kind == "sink" and each not in moved})
        if not rows:
            return every.call(LATEST if restore is None else restore)
        back = free_of(rows, whole)
        return (
            f"{every.call(back)}, which produces the rows after epoch {back} again, for every sink: "
            f"the old {' and '.join(rows)} may lack some (see `spark-ckpt restore STORE {back}`)"
        )

    hint = f"{_correction(changes, known)}; or confirm the new {_one(changes)} by name: {call(())}"
    if moved := [each for each in changes if each.is_of_place]:
        what = "it" if len(changes) == 1 else " and ".join(f"{each.kind} '{each.name}'" for each in moved)
        hint += f"; or that {what} {_are(moved)} the same {_one(moved)}, moved: {call(moved)}"
    return IdentityChanged(
        f"{' and '.join(names)} {_are(changes)} not what the job's epochs were made with; {then}", hint=hint, **context
    )


def _one(changes: Sequence[_IdentityChange]) -> str:
    return one_or_many(len(changes), "one", "ones")


def _are(changes: Sequence[_IdentityChange]) -> str:
    return one_or_many(len(changes), "is", "are")


def _all_confirmed(
    changes: Sequence[_IdentityChange], moved: Collection[_IdentityChange], confirmed: Confirmed
) -> Confirmed:
    """Return `confirmed` with every change, those of `moved` as moved."""
    new = {
        kind: {each.name for each in changes if each.kind == kind and each not in moved} for kind in ("source", "sink")
    }
    return replace(
        confirmed,
        new_sources=confirmed.new_sources | new["source"],
        new_sinks=confirmed.new_sinks | new["sink"],
        moved=confirmed.moved - {each.name for each in changes} | {each.name for each in moved},
    )


def _correction(changes: Sequence[_IdentityChange], known: Mapping[str, Mapping[str, Parts]]) -> str:
    for each in changes:
        for other, parts in known[each.kind].items():
            # The endpoint is recorded under another name: a rename cures it, and no position is lost.
            if other != each.name and parts and not differing(parts, each.found):
                return f"{each.kind} '{each.name}' is now what '{other}' was: give each its old name back"
    return "correct the " + one_or_many(len(changes), changes[0].kind, "endpoints")
