"""Micro-batches as Spark runs them: where one ends is fixed before it runs, and it is atomic for whoever hears of it.

A batch goes through all operators. Each counts its rows per key. At a barrier each key group writes what has changed since its
last snapshot as a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from spark_ckpt.connector import StagedFile
from spark_ckpt.host.epoch_builder import Chains
from spark_ckpt.host.markers import BARRIER, Marker
from spark_ckpt.host.messages import BatchDone
from spark_ckpt.host.reports import Report, Step, latest_attempts, scope_of_group
from spark_ckpt.simulator.spark_store import GETS, GROUPS, OPERATORS, SINKS, Row, Shared, key_behind, key_of
from spark_ckpt.store.records import StateFile

LONGEST_CHAIN = 3
PARTIAL = {f"partial {operator}": operator for operator in OPERATORS}
"""Batches whose marker does not come to the last key group of one operator, for which there is no reason, but a rule."""


@dataclass
class Group:
    """One key group's state in a Python worker. `chain`: files since the last full one."""

    number: int
    counts: dict[int, int]
    changed: set[int] = field(default_factory=set)
    chain: int = 0


@dataclass(frozen=True)
class Planned:
    """A line of Spark's offset log."""

    batch: int
    begins: Mapping[str, int]
    ends: Mapping[str, int]
    markers: int


class Query:
    """One incarnation's query: its batches, its groups, its control stream."""

    def __init__(
        self, shared: Shared, incarnation: int, cursors: Mapping[str, int], groups: Mapping[str, list[Group]]
    ) -> None:
        self.shared = shared
        self.incarnation = incarnation
        self.groups = groups
        self.ends = dict(cursors)
        self.markers: list[Marker] = []
        self.seen = 0
        self.batch = 0
        self.planned: Planned | None = None

    def news(self, rows: int) -> bool:
        """Whether Spark would plan a batch: rows, or a marker."""
        return any(end < rows for end in self.ends.values()) or self.seen < len(self.markers)

    def plan(self, rows: int, most: int) -> None:
        """Fix where the next batch ends: at most `most` rows of each source, all markers."""
        ends = {source: min(rows, end + most) for source, end in self.ends.items()}
        self.planned = Planned(self.batch, dict(self.ends), ends, len(self.markers))

    def run(self, how: str) -> BatchDone:
        """Run the planned batch. `how`: "once"; "twice" if the tasks that stage ran again because their output was lost; or one of
        `PARTIAL`."""
        planned = self.planned
        assert planned is not None  # noqa: S101 - else the choice does not exist
        keys = [key_of(source, number) for source, number in _between(planned)]
        reports = [Report("input", 0, 0, "sources", {"rows_in": len(keys)})]
        rows: dict[str, list[Row]] = {}
        for operator in OPERATORS:
            rows[operator] = [self._counted(operator, key) for key in keys]
            keys = [key_behind(row) for row in rows[operator]]
        for attempt in range(2 if how == "twice" else 1):
            reports += [self._staged(planned.batch, attempt, sink, rows[GETS[sink]]) for sink in SINKS]
        for task, operator in enumerate(OPERATORS):
            reached = GROUPS - (PARTIAL.get(how) == operator)
            reports += self._snapshots(planned, task, operator, reached)
        self.batch, self.ends, self.seen, self.planned = planned.batch + 1, dict(planned.ends), planned.markers, None
        cursors = {source: {"n": end} for source, end in planned.ends.items()}
        return BatchDone(planned.batch, cursors, 0, planned.markers, tuple(latest_attempts(reports)))

    def _counted(self, operator: str, key: int) -> Row:
        group = self.groups[operator][key % GROUPS]
        group.counts[key] = group.counts.get(key, 0) + 1
        group.changed.add(key)
        return key, group.counts[key]

    def _staged(self, batch: int, attempt: int, sink: str, rows: list[Row]) -> Report:
        path = f"ckpt-{sink}-i{self.incarnation}-b{batch}-a{attempt}"
        self.shared.staged[path] = tuple(rows)
        step: Step = "tap" if GETS[sink] != OPERATORS[-1] else "stage"
        return Report(step, 0, attempt, sink, asdict(StagedFile(path, 1, len(rows), 0, batch, 0, 0)))

    def _snapshots(self, planned: Planned, attempt: int, operator: str, reached: int) -> list[Report]:
        """Of the first groups of an operator. `attempt`: as in Spark, a later task of the batch has a higher one."""
        marker = self.markers[planned.markers - 1] if planned.markers > self.seen else None
        if marker is None or marker.kind != BARRIER:
            return []
        return [
            self._snapshot(operator, attempt, group, marker.epoch, planned.batch)
            for group in self.groups[operator][:reached]
        ]

    def _snapshot(self, operator: str, attempt: int, group: Group, epoch: int, batch: int) -> Report:
        full = group.chain >= LONGEST_CHAIN
        keys = set(group.counts) if full else group.changed
        file = None
        if keys:
            path = f"{operator}-i{self.incarnation}-b{batch}-g{group.number}"
            self.shared.state[path] = {key: group.counts[key] for key in sorted(keys)}
            group.chain = 1 if full else group.chain + 1
            group.changed = set()
            file = StateFile(
                path=path, size_bytes=1, rows=len(keys), key_group=group.number, epoch=epoch,
                incarnation=self.incarnation, kind="full" if full else "changes",
            ).model_dump(mode="json")  # fmt: skip
        scope = scope_of_group(operator, group.number)
        return Report("operator", group.number, attempt, scope, {"epoch": epoch, "file": file})


def _between(planned: Planned) -> list[tuple[str, int]]:
    return [(source, number) for source, end in planned.ends.items() for number in range(planned.begins[source], end)]


def restored(shared: Shared, chains: Chains) -> dict[str, list[Group]]:
    """Every operator's key groups as their chains have them."""
    return {
        operator: [_group(shared, number, chains.get((operator, number), ())) for number in range(GROUPS)]
        for operator in OPERATORS
    }


def _group(shared: Shared, number: int, chain: tuple[StateFile, ...]) -> Group:
    return Group(number, dict(shared.folded(chain)), chain=len(chain))
