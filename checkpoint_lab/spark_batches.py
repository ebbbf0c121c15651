"""Micro-batches of Spark: the end of a batch is fixed before it runs, and its result is atomic for every listener.

A batch goes through all operators, and each counts its rows per key. Late rows count, too; their number is reported. At
a barrier each task writes the changes of its key groups since their last snapshots as a file. Rows that a batch puts on
an edge come out in a later batch, in order, segment by segment and perhaps not all at once. While an edge is full, a
batch has no source rows. Segments are files that the batch reads when it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from checkpoint_lab.spark_store import (
    DELAY_MS,
    EDGES,
    GETS,
    GOES_LATER,
    GROUPS,
    LATER,
    LOOP,
    OPERATORS,
    SINKS,
    SOURCES,
    Name,
    Row,
    Shared,
    event_ms,
    key_behind,
    key_of,
)
from checkpoint_lab.violations import ensure
from spark_ckpt.connector import Json, StagedFile
from spark_ckpt.coordination.cut import Chains, event_times
from spark_ckpt.coordination.edges import Bound, segments_in
from spark_ckpt.coordination.full_snapshots import is_asked
from spark_ckpt.coordination.markers import BARRIERS, PREFETCHED, ControlMarker
from spark_ckpt.coordination.messages import BatchDone
from spark_ckpt.coordination.reports import EDGE, Report, add, latest_attempts
from spark_ckpt.epochs.records import StateFile, StateRange

BOUND = Bound(6)
"""Maximal number of rows on an edge; schedules exceed it."""
Rows = dict[str, list[Row]]


@dataclass
class Group:
    """State of one key group in a Python worker.

    `epoch`: its last barrier.
    """

    number: int
    counts: dict[int, int]
    changed: set[int] = field(default_factory=set)
    epoch: int = 0

    def copy(self) -> Group:
        """Return the state as another attempt of the task finds it."""
        return replace(self, counts=dict(self.counts), changed=set(self.changed))


@dataclass(frozen=True)
class Planned:
    """A line of Spark's offset log."""

    batch: int
    begins: Mapping[str, int]
    ends: Mapping[str, int]
    markers: int
    segments: Mapping[str, int]
    """Number of segments of each edge that have come out at its end."""


class SimulatedQuery:
    """The query of one incarnation: its batches, its groups, its control stream."""

    def __init__(
        self,
        shared: Shared,
        incarnation: int,
        cursors: Mapping[str, int],
        groups: dict[str, list[Group]],
        in_flight: Mapping[str, Sequence[StagedFile]],
        clocks: Mapping[str, int],
    ) -> None:
        self.shared = shared
        self.incarnation = incarnation
        self.groups = groups
        self.ends = dict(cursors)
        self.added = {edge: list(in_flight.get(edge, ())) for edge in EDGES}
        self.taken = dict.fromkeys(EDGES, 0)
        self.resting = False
        """True if an edge was full after the previous batch."""
        self.markers: list[ControlMarker] = []
        self.seen = 0
        self.batch = 0
        self.watermark_ms = 0
        """Spark's watermark of the next batch, in ms.

        It covers the rows of this query only, and the event times that the first batch shows to its clocks.
        """
        self.clocks = dict(clocks)
        """Newest event time of every source's rows."""
        self.late: list[Counter[str]] = []
        """Late rows of each batch, by operator; oracles read it."""
        self.calls: dict[tuple[str, int], int] = {}
        """Key groups that have rows in the running batch, and how many of them are late."""
        self.planned: Planned | None = None

    @property
    def waiting(self) -> int:
        """Number of segments that wait on the fullest edge."""
        return max(len(self.added[edge]) - self.taken[edge] for edge in EDGES)

    @property
    def barrier(self) -> ControlMarker | None:
        """The barrier that ends the planned batch, or None."""
        if self.planned is None or self.planned.markers == self.seen:
            return None
        marker = self.markers[self.planned.markers - 1]
        return marker if marker.kind in BARRIERS else None

    def news(self, rows: int) -> bool:
        """Return True if Spark would plan a batch: for rows, segments, or a marker."""
        return self.arrived(rows) or self.waiting > 0 or self.seen < len(self.markers)

    def arrived(self, rows: int) -> bool:
        """Return True if a source has rows for a batch."""
        return not self.resting and any(end < rows for end in self.ends.values())

    def plan(self, rows: int, most: int, segments: int) -> None:
        """Fix the end of the next batch: `most` rows of each source, `segments` of each edge, and all markers."""
        most = 0 if self.resting else most
        ends = {source: min(rows, end + most) for source, end in self.ends.items()}
        taken = {edge: taken + min(segments, BOUND.portion(self._left(edge))) for edge, taken in self.taken.items()}
        self.planned = Planned(self.batch, dict(self.ends), ends, len(self.markers), taken)

    def _left(self, edge: str) -> Sequence[StagedFile]:
        return self.added[edge][self.taken[edge] :]

    def run(self, how: str) -> BatchDone:
        """Run the planned batch.

        `how`: "once"; "twice" if tasks ran again because their output was lost; or an operator whose last
        task misses the marker. Spark gives no reason for the latter, but the rules handle it.
        """
        planned = self.planned
        assert planned is not None  # noqa: S101 - else the choice does not exist
        delivered = _between(planned)
        self.late.append(Counter())
        self.calls = {}
        reports = [Report("input", 0, 0, "sources", {"rows_in": len(delivered)}), self._event_times(delivered)]
        rows, put = self._flow(delivered, {edge: self._come_out(edge, planned) for edge in EDGES})
        # Both attempts write files and report; only the newest attempt of each task counts (`latest_attempts`).
        for attempt in range(2 if how == "twice" else 1):
            reports += [
                self._staged(planned.batch, attempt, sink, rows[GETS[sink]]) for sink in SINKS if rows[GETS[sink]]
            ]
            reports += [each for edge in EDGES for each in self._put(planned.batch, attempt, edge, put[edge])]
        for number, operator in enumerate(OPERATORS):
            if how == "twice":
                # The second attempt must find the groups as the first one did, with their changes since the last barrier.
                before = [group.copy() for group in self.groups[operator]]
                reports += self._tasks(planned, number, operator, self.tasks)
                self.groups[operator] = before
            # Spark's attempt ids grow over all stages of a session: those of a later operator, or of a repeated task,
            # are higher.
            attempt = number + len(OPERATORS) * (how == "twice")
            reports += self._tasks(planned, attempt, operator, self.tasks - (how == operator))
        # a source without rows so far holds the watermark at 0
        least_ms = min(self.clocks[source] - DELAY_MS if source in self.clocks else 0 for source in SOURCES)
        late_ms, self.watermark_ms = self.watermark_ms, max(self.watermark_ms, least_ms)
        return self._done(planned, late_ms, tuple(latest_attempts(reports)))

    def _event_times(self, delivered: Sequence[Name]) -> Report:
        newest: dict[tuple[str, str], int] = {}
        for name in delivered:
            of, at_ms = (OPERATORS[0], name.source), event_ms(name.source, name.number)
            newest[of] = max(newest.get(of, at_ms), at_ms)
            self.clocks[name.source] = max(self.clocks.get(name.source, at_ms), at_ms)
        return event_times(newest)

    def _done(self, planned: Planned, late_ms: int, reports: tuple[Report, ...]) -> BatchDone:
        # before Spark plans the next batch, which may take them
        for edge, segments in segments_in(reports).items():
            self.added[edge] += segments
        self.shared.batch_ran(self.incarnation, planned.begins, planned.ends)
        self.batch, self.ends, self.seen, self.planned = planned.batch + 1, dict(planned.ends), planned.markers, None
        self.taken = dict(planned.segments)
        self.resting = bool(BOUND.full({edge: sum(each.rows for each in self._left(edge)) for edge in EDGES}))
        cursors = {source: {"n": end} for source, end in planned.ends.items()}
        return BatchDone(planned.batch, cursors, late_ms, planned.markers, reports, taken=dict(planned.segments))

    # -- the job ------------------------------------------------------------------------------------------------------

    def _flow(self, delivered: list[Name], out: Mapping[str, list[Row]]) -> tuple[Rows, Rows]:
        """Return each operator's rows and the rows put on each edge, from the source rows and the edges' rows."""
        # an odd number of rounds only passes; an even one is input again
        back = [row._replace(name=row.name.next) for row in out[LOOP]]
        passing = [row for row in back if not row.name.is_input]
        names = [*delivered, *(row.name for row in back if row.name.is_input)]
        first = [self._counted("counts", key_of(name), name) for name in names]
        later = [row for row in first if row.key in GOES_LATER]
        behind = [*(row for row in first if row.key not in GOES_LATER), *out[LATER]]
        second = [self._counted("totals", key_behind(row.key, row.nth), row.name) for row in behind]
        fed_back = [row for row in (*first, *passing) if row.name.goes_round]
        return {"counts": first, "totals": second}, {LOOP: fed_back, LATER: later}

    def _counted(self, operator: str, key: int, name: Name) -> Row:
        group = self.groups[operator][key % GROUPS]
        group.counts[key] = group.counts.get(key, 0) + 1
        group.changed.add(key)
        is_late = event_ms(name.source, name.number) < self.watermark_ms
        self.calls[operator, group.number] = self.calls.get((operator, group.number), 0) + is_late
        self.late[-1][operator] += is_late
        return Row(key, group.counts[key], name)

    def _staged(self, batch: int, attempt: int, sink: str, rows: list[Row]) -> Report:
        # the attempt is in the name: a task that runs again writes another file
        path = f"ckpt-{sink}-i{self.incarnation}-b{batch}-a{attempt}"
        self.shared.staged[path] = tuple(rows)
        return Report("tap", 0, attempt, sink, _file(path, len(rows), batch))

    # -- edges --------------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """True if every segment that the planned batch takes exists."""
        planned = self.planned
        return planned is None or all(
            segment.path in self.shared.segments for edge in EDGES for segment in self._taken_by(planned, edge)
        )

    def _taken_by(self, planned: Planned, edge: str) -> Sequence[StagedFile]:
        return self.added[edge][self.taken[edge] : planned.segments[edge]]

    def _come_out(self, edge: str, planned: Planned) -> list[Row]:
        return [row for segment in self._taken_by(planned, edge) for row in self.shared.segment(segment.path)]

    def _put(self, batch: int, attempt: int, edge: str, rows: list[Row]) -> Iterator[Report]:
        # one task per source; a later attempt cuts its files at other rows, so that a mixture of attempts shows
        size = self.shared.segment_rows + attempt
        for task, source in enumerate(SOURCES):
            own = [row for row in rows if row.name.source == source]
            for part, start in enumerate(range(0, len(own), size)):
                path = f"ckpt-{edge}-i{self.incarnation}-b{batch}-t{task}-a{attempt}-p{part}"
                segment = self.shared.segments[path] = tuple(own[start : start + size])
                yield Report("tap", task, attempt, f"{EDGE}{edge}", _file(path, len(segment), batch, task, part))

    # -- tasks of an operator -------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> int:
        """Number of tasks of each operator. It changes from incarnation to incarnation."""
        return 1 + self.incarnation % 2

    def _tasks(self, planned: Planned, attempt: int, operator: str, reached: int) -> list[Report]:
        """Return the tasks' reports. The marker reaches the first `reached` ones; a later operator has a higher attempt."""
        reports: list[Report] = []
        for task in range(self.tasks):
            marker = self.barrier if task < reached else None
            for body in self._called(f"b{planned.batch}-t{task}-a{attempt}", operator, task, marker):
                add(reports, Report("operator", task, attempt, operator, body))
        return reports

    def _called(self, name: str, operator: str, task: int, marker: ControlMarker | None) -> Iterator[dict[str, Json]]:
        groups = self.called(operator, task, marker)
        # without a marker Spark calls the key groups that have rows, and no other
        if marker is None:
            for group in groups:
                yield {"late": self.calls[operator, group.number]}
            return
        snapshot = self._snapshot(name, operator, groups, marker)
        for group in groups:
            told: dict[str, Json] = {"late": self.calls.get((operator, group.number), 0), "epoch": marker.epoch}
            # the last key group of the task makes the files durable
            yield {**told, **snapshot} if group.number + self.tasks >= GROUPS else told

    def called(self, operator: str, task: int, marker: ControlMarker | None) -> list[Group]:
        """Return the key groups of a task that Spark calls: each one gets a marker."""
        own = self.groups[operator][task :: self.tasks]
        return own if marker else [group for group in own if (operator, group.number) in self.calls]

    def _snapshot(self, name: str, operator: str, groups: Sequence[Group], marker: ControlMarker) -> Mapping[str, Json]:
        """Pass the barrier as the shipped groups of a task do: a barrier that is not newer than the group's is stale."""
        votes: list[Json] = []
        parts: dict[str, list[Group]] = {}
        for group in groups:
            asked = is_asked(marker.full, operator, group.number)
            # an unchanged group votes for a prefetched barrier and stays at its older one
            stays = marker.kind == PREFETCHED and not group.changed and not asked
            if not stays and (marker.epoch > group.epoch or asked):
                group.epoch = marker.epoch
                if asked or group.changed:
                    parts.setdefault("full" if asked else "changes", []).append(group)
                votes.append(group.number)
            elif stays:
                votes.append(group.number)
        files: list[Json] = [
            self._written(f"{operator}-i{self.incarnation}-{name}-{kind}", kind, groups, marker.epoch)
            for kind, groups in parts.items()
        ]
        return {"groups": votes, "files": files}

    def _written(self, path: str, kind: str, groups: Sequence[Group], epoch: int) -> Json:
        content: dict[int, int] = {}
        ranges = []
        for group in groups:
            keys = set(group.counts) if kind == "full" else group.changed
            content |= {key: group.counts[key] for key in sorted(keys)}
            ranges.append(StateRange(group.number, len(keys), 0, 1))
            group.changed = set()
        self.shared.write_state(path, content)
        return StateFile(
            path=path, size_bytes=1, ranges=tuple(ranges), epoch=epoch, incarnation=self.incarnation,
            kind="full" if kind == "full" else "changes",
        ).model_dump(mode="json")  # fmt: skip


def _file(path: str, rows: int, batch: int, task: int = 0, part: int = 0) -> dict[str, Json]:
    """Return a staged file or segment as a report describes it."""
    return {"path": path, "size_bytes": 1, "rows": rows, "lane": 0, "batch": batch, "task": task, "part": part}


def _between(planned: Planned) -> list[Name]:
    ends = planned.ends.items()
    return [Name(source, number) for source, end in ends for number in range(planned.begins[source], end)]


def restored(shared: Shared, chains: Chains) -> dict[str, list[Group]]:
    """Return every operator's key groups as their chains hold them."""
    return {
        operator: [_group(shared, number, chains.get((operator, number), ())) for number in range(GROUPS)]
        for operator in OPERATORS
    }


def _group(shared: Shared, number: int, chain: tuple[StateFile, ...]) -> Group:
    gone = [file.path for file in chain if file.path in shared.gone]
    ensure(not gone, "O12", f"state is restored from {gone}, which are gone")
    return Group(number, {key: count for key, count in shared.folded(chain).items() if key % GROUPS == number})
