"""Recorded incarnations of a job as behaviours of `BarrierCommit`, which TLC checks.

A row of the specification is the output of one batch for the sink, for each source that moved in it; its number grows
along the committed epochs. Source `s` is the job's first source, `t` all others together, and the edges of its graph:
rows taken off an edge are a move, too. A batch is atomic, so its rows are read and taken, and its barrier is taken, in one
step: an epoch begins with the batch that holds its barrier. An epoch
published at some time between an attempt and its end counts from the attempt on. A new incarnation is the crash of the
specification. The steps have their state from the trace alone: cursors from batches and manifests, taken and published
rows from the files that manifests and publishers name.

Events that the specification lacks have no steps (`NotMapped`): aborted epochs, and epochs that begin before the last is published.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_ckpt.coordination.markers import BARRIER
from spark_ckpt.coordination.reports import EDGE
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.trace.lines import asked_for
from spark_ckpt.trace.reading import Recorded
from tests.specs.tla import Step, record, sequence, set_of

MODULE = "TraceBarrierCommit"
SOURCES, SINK = ("s", "t"), "k"
NOWHERE = 999
"""A number that nothing in the trace explains: no behaviour has it."""

Cursors = Mapping[str, object]
Batch = tuple[int, int]
"""Of an incarnation, by its number."""


class NotMapped(Exception):
    """The specification has no step for an event of the trace."""


@dataclass
class Walk:
    """Follows a job's incarnations. `sink`: the one whose rows are followed."""

    sink: str
    groups: Mapping[str, Sequence[str]]
    steps: list[Step] = field(default_factory=list)
    incarnation: int = 0
    cursor: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    known: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of rows of a source before a cursor."""
    rows: dict[Batch, dict[str, int]] = field(default_factory=dict)
    files: dict[Batch, set[str]] = field(default_factory=dict)
    stored: set[tuple[str, int]] = field(default_factory=set)
    taken: dict[int, dict[str, int]] = field(default_factory=lambda: {0: dict.fromkeys(SOURCES, 0)})
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    decided: int = 0
    settled: int = 0
    visible: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in SOURCES})
    markers: dict[int, int] = field(default_factory=dict)
    reached: int = 0
    consumed: dict[str, int] = field(default_factory=dict)
    """Rows that were taken off each edge."""
    in_flight: dict[str, list[int]] = field(default_factory=dict)
    """The rows of each segment on an edge."""
    taken_off: dict[str, int] = field(default_factory=dict)
    asked: dict[int, Manifest] = field(default_factory=dict)

    # -- an incarnation ------------------------------------------------------------------------------------------------

    def live(self, recorded: Recorded, following: Recorded | None) -> None:
        if recorded.cut:
            raise NotMapped(f"{recorded.name} does not hold everything")
        self._begin(recorded)
        ends = _ends(recorded, self.sink)
        for number, line in enumerate(recorded.lines):
            self._event(recorded, line.event)
            self.asked |= asked_for(line)
            if line.event["kind"] == "SourcesPinned" and line.effects:
                self._pinned(line.event["starts"])
            for effect in line.effects:
                self._answered(effect, ends.get((number, id(effect))))
        self._unanswered(following)

    def _begin(self, recorded: Recorded) -> None:
        point = recorded.begun.point
        manifest, operators = point.manifest, recorded.begun.shape.operators
        self.groups_due = {(each.name, group) for each in operators for group in range(each.key_groups)}
        before, self.incarnation = self.incarnation, point.incarnation
        self.stored, self.markers, self.reached, self.asked = set(), {}, 0, {}
        self.decided = manifest.epoch
        self.cursor = {name: self._position(name, _positions_at(manifest)) if manifest.epoch else 0 for name in SOURCES}
        edges = [each.name for each in recorded.begun.shape.edges]
        self.consumed = {edge: manifest.edges[edge].consumed if edge in manifest.edges else 0 for edge in edges}
        self.in_flight = {edge: [file.rows for file in cut.files] for edge, cut in manifest.edges.items()}
        self.taken_off = dict.fromkeys(edges, 0)
        self.read = dict(self.cursor)
        self.known = {key: count for key, count in self.known.items() if count <= self.cursor[key[0]]}
        for number in range(max(before, 1) + 1, self.incarnation + 1):
            self._act("crash", shows=number == self.incarnation)

    def _unanswered(self, following: Recorded | None) -> None:
        """The log may have the last manifest although the driver died before the answer: the next incarnation continues from it."""
        epoch = following.begun.point.manifest.epoch if following else 0
        if epoch > self.decided and epoch in self.asked:
            self._decide(self.asked[epoch])

    # -- events of the rules -------------------------------------------------------------------------------------------

    def _event(self, recorded: Recorded, event: Mapping[str, Any]) -> None:
        match event:
            case {"kind": "BatchDone"}:
                self._batch(event)
            case {"kind": "EpochCommitted", "manifest": {"epoch": epoch}}:
                assert epoch in self.asked, f"{recorded.name}: epoch {epoch} was never asked for"
                self._decide(self.asked[epoch])

    def _pinned(self, starts: Cursors) -> None:
        """The epoch of the sources' starts has no rows."""
        for name in SOURCES:
            self.known[name, self._cursor_of(name, self._at(starts))] = 0
        [epoch] = self.asked
        self._barrier(epoch, whole=True)

    def _batch(self, event: Mapping[str, Any]) -> None:
        batch = (self.incarnation, int(event["batch"]))
        self.files[batch] = {each["body"]["path"] for each in event["reports"] if _is_for(each, self.sink)}
        self._take_off(event)
        at = self._at(event["cursors"])
        moved = {name for name in SOURCES if self._known(name, at) != self.cursor[name]}
        if self.files[batch] and not moved:
            raise NotMapped(f"batch {batch} put something out and read nothing")
        self.rows[batch] = {}
        for name in sorted(moved):
            if self.files[batch]:
                self.cursor[name] += 1
                self.rows[batch][name] = self.cursor[name]
                self._act("read", name)
                self._act("take row", name)
            self.known[name, self._cursor_of(name, at)] = self.cursor[name]
        before, self.reached = self.reached, event["markers"]
        if self.reached > before and self.reached in self.markers:
            epoch = self.markers[self.reached]
            self._barrier(epoch, self.groups_due <= _acknowledged(event, epoch))
        elif self.rows[batch]:
            self._show()

    def _take_off(self, event: Mapping[str, Any]) -> None:
        """Segments at the front are consumed; segments of the batch's output are added at the end."""
        for edge, taken in event["taken"].items():
            waiting = self.in_flight.setdefault(edge, [])
            count, self.taken_off[edge] = taken - self.taken_off[edge], taken
            self.consumed[edge] += sum(waiting[:count])
            del waiting[:count]
        for report in sorted(event["reports"], key=lambda each: (each["partition"], each["body"].get("part", 0))):
            if report["scope"].startswith(EDGE):
                self.in_flight.setdefault(report["scope"].removeprefix(EDGE), []).append(report["body"]["rows"])

    def _at(self, cursors: Cursors) -> Cursors:
        return {**cursors, **{EDGE + edge: rows for edge, rows in self.consumed.items()}}

    def _known(self, name: str, cursors: Cursors) -> int:
        """A cursor that no batch had counts as no rows."""
        return self.known.get((name, self._cursor_of(name, cursors)), -1)

    def _barrier(self, epoch: int, whole: bool) -> None:
        """All rows up to here are durable; the sink's part only if every key group has acknowledged."""
        if self.settled < self.decided:
            raise NotMapped(f"epoch {epoch} began before epoch {self.decided} was published")
        self._act("begin")
        for action in ("barrier", "take barrier", "store"):
            for name in SOURCES:
                self._act(action, name)
        self.stored |= {(name, epoch) for name in SOURCES}
        if whole:
            self._act("store", SINK)
            self.stored.add((SINK, epoch))
        self._show()

    def _decide(self, manifest: Manifest) -> None:
        base = self.taken.get(manifest.base, dict.fromkeys(SOURCES, NOWHERE))
        output = manifest.outputs.get(self.sink)
        rows = self._rows_of(file.path for file in (output.files if output else ()) if file.rows)
        self.taken[manifest.epoch] = {name: _after(base[name], rows[name]) for name in SOURCES}
        self.read = {name: self._position(name, _positions_at(manifest)) for name in SOURCES}
        self.decided = manifest.epoch
        self._act("decide", shows=True)
        if manifest.reason == "initial":
            self.settled = self.decided
            self._act("publish", shows=True)

    # -- effects of the rules ------------------------------------------------------------------------------------------

    def _answered(self, effect: Mapping[str, Any], end: Mapping[str, Any] | None) -> None:
        match effect:
            case {"kind": "OfferMarker", "marker": {"number": number, "kind": kind, "epoch": epoch}} if kind == BARRIER:
                self.markers[number] = epoch
            case {"kind": "SayAborted", "epoch": epoch}:
                raise NotMapped(f"epoch {epoch} was given up")
            case {"kind": "Publish", "output": output} if end is not None:
                self._publish(output, bool(end["replayed"]))

    def _publish(self, output: Mapping[str, Any], replayed: bool) -> None:
        epoch = output["epoch"]
        rows = self._rows_of(file["path"] for file in output["files"] if file["rows"])
        if epoch <= self.settled and (replayed or not any(rows.values())):
            return
        if self.settled < epoch < self.decided:
            raise NotMapped(f"epoch {epoch} was published after epoch {self.decided} was decided")
        for name in SOURCES:
            self.visible[name] += rows[name]
        self.settled = epoch
        self._act("publish", shows=True)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows_of(self, paths: Iterator[str]) -> dict[str, list[int]]:
        """Return the rows of the files per source, in order; a batch with a missing file has no row."""
        named, found = list(paths), {name: list[int]() for name in SOURCES}
        batches = dict.fromkeys(batch for path in named for batch, files in self.files.items() if path in files)
        for batch in batches:
            whole = sorted(path for path in named if path in self.files[batch]) == sorted(self.files[batch])
            for name, number in self.rows[batch].items():
                found[name].append(number if whole else NOWHERE)
        return found

    def _cursor_of(self, name: str, cursors: Cursors) -> str:
        return json.dumps([cursors.get(each) for each in self.groups[name]], sort_keys=True)

    def _position(self, name: str, cursors: Cursors) -> int:
        return self.known.get((name, self._cursor_of(name, cursors)), NOWHERE)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _act(self, action: str, name: str = "", shows: bool = False) -> None:
        self.steps.append(Step(action, name, {}))
        if shows:
            self._show()

    def _show(self) -> None:
        """Add the state of the trace to the last step."""
        last = self.steps[-1]
        self.steps[-1] = Step(last.action, last.node, self._shown())

    def _shown(self) -> dict[str, str]:
        taken = self.taken.get(self.decided, dict.fromkeys(SOURCES, NOWHERE))
        return {
            "inc": str(self.incarnation),
            "chan": record(dict.fromkeys(SOURCES, "<<>>")),
            "joined": set_of(f'"{name}"' for name in SOURCES),
            "coordinated": "FALSE",
            "cursor": _counts(self.cursor),
            "stored": set_of(f'<<"{name}", {epoch}>>' for name, epoch in sorted(self.stored)),
            "decided": str(self.decided),
            "settled": str(self.settled),
            "taken": _counts(taken),
            "read": _counts(self.read),
            "visible": record({name: sequence(map(str, rows)) for name, rows in self.visible.items()}),
        }


def _positions_at(manifest: Manifest) -> Cursors:
    """Return the cursors of sources and edges at an epoch."""
    return {**manifest.cursors, **{EDGE + edge: cut.consumed for edge, cut in manifest.edges.items()}}


def _counts(values: Mapping[str, int]) -> str:
    return record({name: str(values[name]) for name in SOURCES})


def _after(base: int, rows: Sequence[int]) -> int:
    """Return the number of rows with these after `base`, if they are in order."""
    return base + len(rows) if list(rows) == list(range(base + 1, base + 1 + len(rows))) else NOWHERE


def _is_for(report: Mapping[str, Any], sink: str) -> bool:
    return report["step"] == "tap" and report["scope"] == sink and report["body"]["rows"] > 0


def _acknowledged(event: Mapping[str, Any], epoch: int) -> set[tuple[str, int]]:
    """Return the key groups that have acknowledged the epoch."""
    reports = [each for each in event["reports"] if each["step"] == "operator" and each["body"].get("epoch") == epoch]
    return {(each["scope"], int(group)) for each in reports for group in each["body"]["groups"]}


def _ends(recorded: Recorded, sink: str) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Return the ends of successful publish attempts at the sink, by the number of the line and of the requesting effect."""
    asked: list[tuple[int, Mapping[str, Any]]] = []
    found: dict[tuple[int, int], Mapping[str, Any]] = {}
    for number, line in enumerate(recorded.lines):
        event: Mapping[str, Any] = line.event
        if event["kind"] == "PublishEnded" and event["sink"] == sink:
            at, effect = asked.pop(0)
            assert effect["output"]["epoch"] == event["epoch"]
            if event["error"] is None:
                found[at, id(effect)] = event
        asked += [(number, each) for each in line.effects if each["kind"] == "Publish" and each["sink"] == sink]
    return found


def recorded_steps(traces: Sequence[Recorded], sink: str) -> list[Step]:
    """The steps of a job's incarnations, oldest first, from its first one on. Raises `NotMapped`."""
    shape = traces[0].begun.shape
    first, *others = shape.sources
    walk = Walk(sink, {"s": [first], "t": [*others, *(EDGE + each.name for each in shape.edges)]})
    for recorded, following in zip(traces, [*traces[1:], None], strict=True):
        walk.live(recorded, following)
    return walk.steps
