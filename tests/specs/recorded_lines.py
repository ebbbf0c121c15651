"""Recorded runs of the stages of one program as behaviours of `StageLines`, which TLC checks.

A position on an edge is a number of rows: those of the sender's committed manifests before it. A batch takes rows of each
edge; if a stage reads edges only, the rows that its tasks have counted must be those between the positions. A barrier's batch
is the cut. An epoch is committed when its stage reads its index (`EpochServes`), or when the next incarnation finds it in
the log; an index without a committed epoch is announced. Sinks may publish an epoch from the moment that the rules allow it.
Indices are numbered in their order.

Stages record without a common clock. Here each step comes after the rows of other logs that it has read: a row after its epoch, a
released epoch after the indices that were read, an index of an aligned reader after those of its senders. Among the steps that
may come next, the one with the earliest wall clock comes first.

Events that the specification lacks have no steps (`NotMapped`): aborted epochs, restores by an operator, a change of the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from spark_ckpt.coordination.markers import BARRIERS
from spark_ckpt.coordination.stage_process import Between
from spark_ckpt.epochs.records import Manifest, Position
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.trace.lines import STAGE_EVENTS, Handled, StageBegun, asked_for
from spark_ckpt.trace.reading import Recorded
from tests.specs.recorded_steps import NotMapped
from tests.specs.tla import Step, record, set_of, traces_module

MODULE = "TraceStageLines"
NOWHERE = 999_999
"""A position that no committed epoch explains: no behaviour has it."""
UNCOUNTED = -1
"""Rows of a stage that reads other sources, too."""
_BETWEEN = {each.__name__ for each in STAGE_EVENTS}


@dataclass(frozen=True)
class Edge:
    """An edge: the sender's name for it, and the reader's source."""

    sender: str
    edge: str
    reader: str
    source: str

    @property
    def name(self) -> str:
        """Its name in the specification."""
        return _word(f"{self.sender}_{self.edge}_{self.reader}")


@dataclass(frozen=True)
class Move:
    """One recorded move of a stage.

    - `time_ms`: wall clock of its last event between stages.
    - `epochs`, `indices`: content of the logs of other stages by then.
    """

    act: str
    stage: str
    time_ms: float
    epoch: int = 0
    index: int = 0
    cursors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: int = 0
    manifest: Manifest | None = None
    epochs: Mapping[str, int] = field(default_factory=dict)
    indices: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Walk:
    """Follows the incarnations of one stage. `edges`: those that it reads; `stages`: all of the program."""

    stage: str
    edges: Sequence[Edge]
    stages: Sequence[str]
    moves: list[Move] = field(default_factory=list)
    time_ms: float = 0
    epoch: int = 0
    index: int = 0
    markers: dict[int, int] = field(default_factory=dict)
    reached: int = 0
    asked: dict[int, Manifest] = field(default_factory=dict)
    stamped: int = 0
    aligned: bool = False
    """True if the stage follows its inputs, not its clock."""

    def live(self, recorded: Recorded, first: bool) -> None:
        """Follow one incarnation."""
        if recorded.cut:
            raise NotMapped(f"{recorded.name} does not hold everything")
        if recorded.begun.stage is None or recorded.begun.point.restored_from != LATEST:
            raise NotMapped(f"{recorded.name} has no index, or was restored by an operator")
        self.aligned = recorded.begun.stage.protocol is Between.ALIGNED and bool(self.edges)
        if not first:
            self._restart(recorded, recorded.begun.stage)
        self.markers, self.reached, self.asked = {}, 0, {}
        for line in recorded.lines:
            self._event(line)
            self.asked |= asked_for(line)
            for effect in line.effects:
                self._answered(line, effect)

    def _restart(self, recorded: Recorded, begun: StageBegun) -> None:
        """The ended incarnation may have missed the answer to its last commit, or to the index that it announced."""
        if begun.epoch > self.epoch:
            # An index that was also announced for this epoch is that of its commit. Aligned readers have recorded both.
            self._commit(begun.epoch, max(self.stamped, self.index) if self.aligned else begun.index)
        if begun.index > self.index:
            self._say(begun.index)
        self._move("crash", epoch=begun.epoch, index=begun.index, cursors=recorded.begun.point.manifest.cursors)

    def _event(self, line: Handled) -> None:
        event: Mapping[str, Any] = line.event
        if event["kind"] in _BETWEEN:
            self.time_ms = max(self.time_ms, line.now_ms)
        match event:
            case {"kind": "BatchDone"}:
                self._batch(event)
            case {"kind": "SourcesPinned"} if line.effects:
                self._move("cut")
            case {"kind": "EpochServes", "epoch": epoch, "index": index}:
                if epoch != self.epoch:
                    self._commit(epoch, index)
                elif index > self.index:
                    self._say(index)

    def _answered(self, line: Handled, effect: Mapping[str, Any]) -> None:
        match effect:
            case {"kind": "OfferMarker", "marker": {"number": number, "kind": kind, "epoch": epoch}} if (
                kind in BARRIERS
            ):
                self.markers[number] = epoch
            case {"kind": "StampEpoch", "index": index}:
                self.stamped = index
            case {"kind": "ReleaseEpochs", "epoch": epoch}:
                stages: Any = line.event["stages"]
                # Each log has the index that was read of it, in any order of stages.
                known = dict.fromkeys(self.stages, min(stages)) if len(stages) == len(self.stages) else {}
                self._move("publish", epoch=epoch, indices=known)
            case {"kind": "Publish", "output": {"epoch": epoch}}:
                self._move("publish", epoch=epoch)
            case {"kind": "SayAborted", "epoch": epoch}:
                raise NotMapped(f"epoch {epoch} of {self.stage} was given up")

    def _batch(self, event: Mapping[str, Any]) -> None:
        rows = sum(each["body"]["rows_in"] for each in event["reports"] if each["step"] == "input")
        cursors = {each.source: event["cursors"][each.source] for each in self.edges}
        epochs = {each.sender: cursors[each.source]["epoch"] for each in self.edges}
        self._move("take", cursors=cursors, rows=rows, epochs=epochs)
        before, self.reached = self.reached, event["markers"]
        if self.reached > before and self.reached in self.markers:
            self._move("cut")

    def _commit(self, epoch: int, index: int) -> None:
        manifest = self.asked.get(epoch)
        if manifest is None:
            raise NotMapped(f"{self.stage} has epoch {epoch}, which it never asked for")
        self.epoch, self.index = epoch, max(self.index, index)
        self._move("commit", epoch=epoch, index=index, cursors=manifest.cursors, manifest=manifest)

    def _say(self, index: int) -> None:
        self.index = index
        known = {each.sender: index for each in self.edges} if self.aligned else {}
        self._move("say", index=index, indices=known)

    def _move(self, act: str, **values: Any) -> None:
        self.moves.append(Move(act, self.stage, self.time_ms, **values))


@dataclass
class Positions:
    """Positions on edges as numbers of rows, from the committed manifests of every stage, oldest first."""

    manifests: Mapping[str, Sequence[Manifest]]

    def sent(self, edge: Edge, epoch: int) -> int:
        """Return the rows that the sender has sent up to an epoch."""
        return sum(map(sum, (self._files(edge, each) for each in self.manifests[edge.sender] if each.epoch <= epoch)))

    def row(self, edge: Edge, cursor: Mapping[str, Any]) -> int:
        """Return the rows before a position; `NOWHERE` for one after an epoch that was never committed."""
        at = Position.model_validate(cursor)
        if not at.epoch:
            return 0
        here = next((each for each in self.manifests[edge.sender] if each.epoch == at.epoch), None)
        if here is None:
            return NOWHERE
        return self.sent(edge, at.epoch - 1) + sum(self._files(edge, here)[: at.files if at.of else None])

    @staticmethod
    def _files(edge: Edge, manifest: Manifest) -> list[int]:
        output = manifest.outputs.get(edge.edge)
        return [file.rows for file in output.files] if output else []


@dataclass
class Steps:
    """Turns the moves of all stages, in order, into steps."""

    edges: Sequence[Edge]
    positions: Positions
    numbers: Mapping[int, int]
    counted: frozenset[str]
    """Stages that read edges only."""
    found: list[Step] = field(default_factory=list)
    at: dict[str, int] = field(default_factory=dict)
    had: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    """Per stage the rows in its state: now, at the barrier, and in its newest epoch."""

    def add(self, move: Move) -> None:
        """Add the steps of a move."""
        name = _word(move.stage)
        number = self.numbers.get(move.index, 0)
        match move.act:
            case "take":
                self._take(move)
            case "cut":
                self.cut[move.stage] = self.had.get(move.stage, 0)
                self._step("cut", name, {"none": "0"})
            case "commit":
                self.committed[move.stage] = self.cut.get(move.stage, 0)
                sent = {
                    each.name: self.positions.sent(each, move.epoch) for each in self.edges if each.sender == move.stage
                }
                self._step("commit", name, {"index": str(number), "sent": _counts(sent), "read": self._read(move)})
            case "say":
                self._step("say", name, {"index": str(number)})
            case "publish" if move.epoch:
                self._step("publish", name, {"epoch": str(self._ordinal(move))})
            case "crash":
                self.had[move.stage] = self.committed.get(move.stage, 0)
                self.at |= {each.name: self._row(each, move) for each in self._in(move)}
                shown = {"epochs": str(self._ordinal(move)), "index": str(number), "read": self._read(move)}
                self._step("crash", name, shown)

    def _take(self, move: Move) -> None:
        edges = self._in(move)
        self.had[move.stage] = self.had.get(move.stage, 0) + move.rows
        moved = [each for each in edges if self._row(each, move) != self.at.get(each.name, 0)]
        if not moved and move.rows and move.stage in self.counted:
            moved = edges[:1]  # rows without a move of the position: no behaviour has them
        for each in moved:
            self.at[each.name] = self._row(each, move)
            last = each is moved[-1] and move.stage in self.counted
            had = self.had[move.stage] if last else UNCOUNTED
            self._step("take", each.name, {"row": str(self.at[each.name]), "had": str(had)})

    def _in(self, move: Move) -> list[Edge]:
        return [each for each in self.edges if each.reader == move.stage]

    def _row(self, edge: Edge, move: Move) -> int:
        return self.positions.row(edge, move.cursors[edge.source]) if edge.source in move.cursors else 0

    def _read(self, move: Move) -> str:
        return _counts({each.name: self._row(each, move) for each in self._in(move)})

    def _ordinal(self, move: Move) -> int:
        """Return which of the stage's epochs it is."""
        epochs = [each.epoch for each in self.positions.manifests[move.stage]]
        return sum(epoch <= move.epoch for epoch in epochs) if move.epoch in (0, *epochs) else NOWHERE

    def _step(self, action: str, name: str, shown: Mapping[str, str]) -> None:
        self.found.append(Step(action, name, shown))


@dataclass(frozen=True)
class Run:
    """A recorded run: its edges and protocol as TLA+, and its steps."""

    shape: str
    steps: list[Step]


def recorded_run(traces: Sequence[Recorded], at_rest: bool = False) -> Run:
    """The steps of all stages of a program, from their first incarnations on. Raises `NotMapped`.

    `at_rest`: the program had nothing left to do at the end.
    """
    lives = {job: list(found) for job, found in groupby(traces, key=lambda each: each.begun.shape.job)}
    edges = [edge for job, found in lives.items() for edge in _edges_of(job, found[0])]
    protocols = {str(each.begun.stage.protocol) for each in traces if each.begun.stage is not None}
    if len(protocols) != 1 or not {each.sender for each in edges} <= lives.keys():
        raise NotMapped(f"not the stages of one program with one protocol: {protocols}, {sorted(lives)}")
    walks = [Walk(job, [each for each in edges if each.reader == job], list(lives)) for job in lives]
    for walk in walks:
        for recorded in lives[walk.stage]:
            walk.live(recorded, first=recorded is lives[walk.stage][0])
    moves = in_order([walk.moves for walk in walks])
    manifests = {walk.stage: [each.manifest for each in walk.moves if each.manifest is not None] for walk in walks}
    counted = {
        job for job, found in lives.items() if len(found[0].begun.shape.sources) == len(_edges_of(job, found[0]))
    }
    numbers = {index: number for number, index in enumerate(sorted({each.index for each in moves} | {0}))}
    steps = Steps(edges, Positions(manifests), numbers, frozenset(counted))
    for move in moves:
        steps.add(move)
    end = [Step("rest", "", {})] if at_rest else []
    return Run(_shape(list(lives), edges, protocols.pop()), [*steps.found, *end])


def in_order(lanes: Sequence[Sequence[Move]]) -> list[Move]:
    """Merge the moves of stages: the earliest of those that come after what they have seen, else the earliest of all."""
    left = [list(lane)[::-1] for lane in lanes if lane]
    epochs, indices = dict[str, int](), dict[str, int]()
    found = []
    while left := [lane for lane in left if lane]:
        ready = [lane for lane in left if _has(epochs, lane[-1].epochs) and _has(indices, lane[-1].indices)]
        move = min(ready or left, key=lambda lane: lane[-1].time_ms).pop()
        found.append(move)
        if move.act in ("commit", "say"):
            epochs[move.stage] = max(epochs.get(move.stage, 0), move.epoch)
            indices[move.stage] = max(indices.get(move.stage, 0), move.index)
    return found


def runs_module(runs: Sequence[Run]) -> dict[str, str]:
    """The file of the module that `TraceStageLines` reads."""
    shapes = f"<<{', '.join(run.shape for run in runs)}>>"
    return traces_module("RecordedLines", [run.steps for run in runs], {"Runs": shapes})


def _has(known: Mapping[str, int], seen: Mapping[str, int]) -> bool:
    return all(known.get(stage, 0) >= number for stage, number in seen.items())


def _edges_of(job: str, recorded: Recorded) -> list[Edge]:
    sources = recorded.begun.standing.sources
    return [
        Edge(parts["job"], parts["edge"], job, name) for name, parts in sources.items() if parts.get("kind") == "edge"
    ]


def _shape(stages: Sequence[str], edges: Sequence[Edge], protocol: str) -> str:
    ends = {each.name: record({"from": f'"{_word(each.sender)}"', "to": f'"{_word(each.reader)}"'}) for each in edges}
    graph = record({"stages": set_of(f'"{_word(each)}"' for each in stages), "edges": record(ends)})
    return record({"graph": graph, "protocol": f'"{protocol}"'})


def _counts(values: Mapping[str, int]) -> str:
    return record({name: str(value) for name, value in values.items()}) if values else "<<>>"


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name)
